"""What the router needs from outside, in sentences: one subject in each file."""
