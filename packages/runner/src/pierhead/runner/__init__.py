"""Builds container images that a router hands out, and returns a result envelope."""
