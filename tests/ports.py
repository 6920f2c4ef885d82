"""Ports for servers that the tests start by a number, and start again."""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

# Below those that the kernel gives to whoever asks for any (ip(7), ip_local_port_range): several
# sessions of tests run at once, and each connection of one could take what another will listen on.
# And above the one that a page of docs/journeys names.
_PORTS: Final = range(18_000, 32_000)
_given: Final[set[int]] = set()


def free_port() -> int:
    """Return a port that nobody listens on, and that nobody else is given while this process lives.

    So it is also free of others while what listened there is restarted, or meant to be gone.
    """
    while True:
        port = random.choice(_PORTS)
        if port not in _given and _is_ours(port) and _is_free(port):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:  # somebody has it
            return False
    return True


def _is_ours(port: int) -> bool:
    """Take a port for this process, against the tests that run beside: it is a byte of a file."""
    try:
        fcntl.lockf(_book(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:  # another process has it
        return False
    return True


@cache
def _book() -> int:
    """Open the file once, for good: closing it would give all ports back (fcntl(2))."""
    file = Path(tempfile.gettempdir(), "pierhead-ports.lock")
    return os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
