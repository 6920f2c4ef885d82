"""Writes built images out of a backend's store, in a process of its own."""
