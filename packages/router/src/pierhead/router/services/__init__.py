"""Use cases: load, decide, store, then tell whoever waits. One file for each concern."""
