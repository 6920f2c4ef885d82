"""A terminal at which a test types: the command sees somebody there."""

import contextlib
import os
import pty
from collections.abc import Mapping


def typed(command: list[str], environment: Mapping[str, str], keys: bytes) -> tuple[int, str]:
    """Start a command, type, and return its exit code and all that was seen."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environment)
    os.write(terminal, keys)
    said = b""
    with contextlib.suppress(OSError):  # EIO: the command has ended
        while data := os.read(terminal, 4096):
            said += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()
