"""Tests of the service, run inside the build."""
