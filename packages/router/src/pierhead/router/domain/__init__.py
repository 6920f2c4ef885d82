"""The rules of the router. Nothing here waits, reads a clock, or is random."""
