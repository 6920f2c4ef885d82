"""Runs as a script of its own: moves itself into cgroups, then becomes the command.

A process that is moved after it was started may have children already; this one has not.
Usage: launcher.py PROCS-FILE... -- COMMAND...
"""

import os
import sys


def main(arguments: list[str]) -> None:
    """Enter the cgroups, then become the command."""
    end = arguments.index("--")
    for file in arguments[:end]:
        with open(file, "w") as procs:
            procs.write("0")
    command = arguments[end + 1 :]
    os.execvp(command[0], command)  # noqa: S606 - no shell is what is wanted here


if __name__ == "__main__":
    main(sys.argv[1:])
