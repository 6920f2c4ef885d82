"""The time of an event loop as a test says, so that no machine is too slow for a short patience.

What waits for input is not touched by it; what waits for a time does so by this one.
"""

import asyncio
import contextlib
from collections.abc import Iterator


class LoopTime:
    """It goes on as that of the world, stands still, or leaps."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._real = loop.time
        self._ahead = 0.0
        self._stopped: float | None = None

    def now(self) -> float:
        """Return the seconds that the loop reckons with."""
        return self._real() + self._ahead if self._stopped is None else self._stopped

    def stop(self) -> None:
        """Let nothing become due: not even a sleep of the test's own ends."""
        self._stopped = self.now()

    def go_on(self) -> None:
        """Go on from where it stood, without a leap."""
        if self._stopped is not None:
            self._ahead, self._stopped = self._stopped - self._real(), None

    def leap(self, seconds: float) -> None:
        """Let so much time be over at once."""
        self._ahead += seconds


@contextlib.contextmanager
def loop_time() -> Iterator[LoopTime]:
    """Take the time of the running loop over; at the end it is that of the world again."""
    loop = asyncio.get_running_loop()
    time = LoopTime(loop)
    loop.time = time.now  # type: ignore[method-assign]
    try:
        yield time
    finally:
        del loop.time
