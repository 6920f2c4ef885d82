"""The frame of the `pierhead` command: finds commands, and speaks to people."""
