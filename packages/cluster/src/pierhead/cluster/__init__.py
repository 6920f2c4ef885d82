"""Runs and moves containers on enrolled nodes. Nothing of it is in this release."""
