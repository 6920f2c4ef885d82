"""What the router's ports are made of: the clock, entropy, SQL, files, processes."""
