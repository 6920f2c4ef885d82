"""`pierhead`: the page and the version at once, or the command that was asked for.

Nothing that commands are made of is imported here: it takes most of the time of a start.
"""

import contextlib
import importlib
import os
import sys

from pierhead.protocol.cli.commands import Command, installed
from pierhead.protocol.lean import passed_over
from pierhead.protocol.version import RELEASE


def main() -> None:
    """Run the command line of this process."""
    _open_what_was_closed()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # It was said already; the interpreter must not complain of it once more at its end.
        _silence()
        code = code or 1
    sys.exit(code)


def _open_what_was_closed() -> None:
    """Let a stream that was closed (`>&-`) lead nowhere: what is opened next would be it."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(nowhere)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    name = arguments[0] if arguments else "--help"
    try:
        if name in {"--help", "-h", "help"}:
            print(page(installed()), flush=True)
            return os.EX_OK
        if name in {"--version", "-V"}:
            print(f"pierhead {RELEASE}", flush=True)
            return os.EX_OK
        with passed_over("typing_extensions"):
            # msgspec takes from there what this Python has itself; loading it would be a sixth of
            # the time that msgspec takes.
            importlib.import_module("msgspec")
        from pierhead.protocol.cli.running import run_command  # noqa: PLC0415 - not for the page

        return run_command(name, arguments[1:])
    except BrokenPipeError:
        # Whoever read our output has enough; the interpreter must not complain at its end.
        _silence()
        return os.EX_OK
    except OSError as error:
        with contextlib.suppress(OSError):  # perhaps there is nowhere to say it
            print(f"error: {error.strerror}\n\nhint: send the output elsewhere", file=sys.stderr)
        _silence()
        return 1


def _silence() -> None:
    """Let what is still to be written go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def page(commands: list[Command]) -> str:
    """Return the page that `pierhead` alone shows."""
    lines = ["Build container images somewhere else, run them on your machines.", ""]
    shown = ""
    for command in commands:
        group = command.group if command.group != shown else ""
        lines.append(f"{group:10} {command.name:11} {command.summary}")
        shown = command.group
    return "\n".join([*lines, "", "pierhead COMMAND --help says more."])
