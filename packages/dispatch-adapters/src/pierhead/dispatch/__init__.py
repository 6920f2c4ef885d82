"""Starts runners in CI systems. Nothing of it is in this release."""
