"""The port where a command looks for a control plane that nobody named: one test at a time."""

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def usual_port() -> Iterator[None]:
    """Have it alone on this machine, against the tests that run beside these."""
    with Path(tempfile.gettempdir(), "pierhead-usual-port.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
