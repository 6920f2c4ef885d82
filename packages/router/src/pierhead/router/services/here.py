"""The runner on the control plane's own machine: started, watched, and started again.

It is an ordinary runner in a process of its own. Its credential is fresh for each life of the
control plane, and reaches it by its standard input only.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from pierhead.server.log import get_logger

BACKOFF_FIRST_SECONDS: Final = 0.5
BACKOFF_MAX_SECONDS: Final = 30.0
# A life of this length was a good one: the next fault starts with the short wait again.
GOOD_LIFE_SECONDS: Final = 60.0
log = get_logger()


class Child(Protocol):
    """A started process that reads one line and lives until its input ends."""

    async def wait(self) -> int:
        """Return its exit code when it has ended."""
        ...

    async def stop(self) -> None:
        """End its input, wait, and kill it if it does not end."""
        ...


Start = Callable[[bytes], Awaitable[Child]]


async def supervise(start: Start, orders: dict[str, object]) -> None:
    """Keep the runner alive until cancelled; then stop it."""
    line = json.dumps(orders).encode() + b"\n"
    loop = asyncio.get_running_loop()
    backoff = BACKOFF_FIRST_SECONDS
    while True:
        began = loop.time()
        how = await _life(start, line)
        if loop.time() - began > GOOD_LIFE_SECONDS:
            backoff = BACKOFF_FIRST_SECONDS
        log.warning("here.ended", how=how, again_in_seconds=backoff)
        await asyncio.sleep(backoff)
        backoff = min(backoff * 2, BACKOFF_MAX_SECONDS)


async def _life(start: Start, line: bytes) -> str:
    """Let it live; return how that ended. Where it cannot be started, the control plane goes on."""
    try:
        child = await start(line)
    except OSError as error:  # there is no room for a process, or it was gone before its orders
        return str(error)
    try:
        return f"exit code {await child.wait()}"
    except asyncio.CancelledError:
        await child.stop()
        raise
