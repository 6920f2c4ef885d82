"""The port where a command looks for a control plane that nobody named: one test at a time."""

import contextlib
import fcntl
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PORT: Final = 7443
LEAVE_SECONDS: Final = 120.0


@contextlib.contextmanager
def usual_port() -> Iterator[None]:
    """Have it alone on this machine, against the tests that run beside these.

    Who had it before may still be ending: a control plane does not always end with its command.
    """
    with Path(tempfile.gettempdir(), "pierhead-usual-port.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        deadline = time.monotonic() + LEAVE_SECONDS
        while _is_taken():
            assert time.monotonic() < deadline, f"somebody listens at port {PORT} of this machine"
            time.sleep(0.1)
        yield


def _is_taken() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return True
    return False
