"""The rules of the runner. Nothing here waits, reads a clock, or is random."""
