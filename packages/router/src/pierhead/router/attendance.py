"""Who still uses a control plane that was started for one command: it ends when nobody does.

Each is a lock on a file of the data folder. The system gives it back when a process ends, however
it ends, so nobody is counted who is gone and nobody has to clean up.

Whoever has something built is waited for. Whoever only looks on is waited for as long as anything
is built, and then for a moment, in which the end is told; so a window that was left open, or whose
reader stands still, keeps nothing alive for ever.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

_USERS: Final = "once.users"
_WATCHERS: Final = "once.watchers"
_PLANE: Final = "once.plane"
LOOK_SECONDS: Final = 0.1
# After the last build's end, for whoever still reads of it.
LINGER_SECONDS: Final = 30.0
# The control plane that looks whether anybody is there holds the lock for less than that.
SETTLE_LOOKS: Final = 5


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


@contextlib.asynccontextmanager
async def looking_on(data: Path) -> AsyncIterator[None]:
    """Be one of those who look on, unless it is about to end."""
    held = None
    for _ in range(SETTLE_LOOKS):
        held = _hold(data / _WATCHERS, fcntl.LOCK_SH)
        if held is not None:
            break
        await asyncio.sleep(LOOK_SECONDS)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


async def until_unused(
    data: Path, builds: Callable[[], Awaitable[bool]], linger_seconds: float = LINGER_SECONDS
) -> None:
    """Return when nobody uses it, and let nobody begin to, to the end of this process.

    `builds`: whether it has builds that have not ended.
    """
    built_at = time.monotonic()  # noqa: TID251 - as long as people wait
    while True:
        now = time.monotonic()  # noqa: TID251
        unwatched = _hold(data / _WATCHERS, fcntl.LOCK_EX)
        if unwatched is None and await builds():
            built_at = now
        over = unwatched is not None or now - built_at > linger_seconds
        if over and _hold(data / _USERS, fcntl.LOCK_EX) is not None:
            return
        if unwatched is not None:
            os.close(unwatched)
        await asyncio.sleep(LOOK_SECONDS)


def is_used(data: Path) -> bool:
    """Somebody uses it, or looks on."""
    held = [_hold(data / name, fcntl.LOCK_EX) for name in (_USERS, _WATCHERS)]
    for one in held:
        if one is not None:
            os.close(one)
    return None in held


def become_plane(data: Path) -> int | None:
    """Return what its process has to inherit, or none: there is one, or one is being started."""
    return _hold(data / _PLANE, fcntl.LOCK_EX)


def note_url(plane: int, url: str) -> None:
    """Tell others where it answers."""
    os.ftruncate(plane, 0)
    os.pwrite(plane, url.encode(), 0)


def is_begun(data: Path) -> bool:
    """Say whether one runs, or is being started."""
    # Shared, so that those who only look are not taken for one that runs.
    held = _hold(data / _PLANE, fcntl.LOCK_SH)
    if held is not None:
        os.close(held)
    return held is None


def noted_url(data: Path) -> str | None:
    """Return where the one that runs answers; none: none runs, or it does not answer yet."""
    return (data / _PLANE).read_text() or None if is_begun(data) else None
