"""Who still uses a control plane that was started for one command: it ends when nobody does.

Each is a lock on a file of the data folder. The system gives it back when a process ends, however
it ends, so nobody is counted who is gone and nobody has to clean up.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_USERS: Final = "once.users"
_PLANE: Final = "once.plane"
LOOK_SECONDS: Final = 0.1


def _hold(path: Path, how: int) -> int | None:
    """Return the descriptor that holds the lock, or none when somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def using(data: Path) -> Iterator[bool]:
    """Be one of those who use it; no: it is about to end, and does not wait for newcomers."""
    held = _hold(data / _USERS, fcntl.LOCK_SH)
    try:
        yield held is not None
    finally:
        if held is not None:
            os.close(held)


async def until_unused(data: Path) -> None:
    """Return when nobody uses it, and let nobody begin to, to the end of this process."""
    while True:
        if _hold(data / _USERS, fcntl.LOCK_EX) is not None:
            return
        await asyncio.sleep(LOOK_SECONDS)


def is_used(data: Path) -> bool:
    """Somebody uses it."""
    held = _hold(data / _USERS, fcntl.LOCK_EX)
    if held is not None:
        os.close(held)
    return held is None


def become_plane(data: Path) -> int | None:
    """Return what its process has to inherit, or none: there is one, or one is being started."""
    return _hold(data / _PLANE, fcntl.LOCK_EX)


def note_url(plane: int, url: str) -> None:
    """Tell others where it answers."""
    os.ftruncate(plane, 0)
    os.pwrite(plane, url.encode(), 0)


def noted_url(data: Path) -> str | None:
    """Return where the one that runs answers; none: none runs, or it does not answer yet."""
    # Shared, so that those who only look are not taken for one that runs.
    held = _hold(data / _PLANE, fcntl.LOCK_SH)
    if held is not None:
        os.close(held)
        return None
    return (data / _PLANE).read_text() or None
