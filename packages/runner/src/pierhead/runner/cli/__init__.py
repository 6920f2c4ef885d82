"""The commands of the runner: join, run, and say what is wrong."""
