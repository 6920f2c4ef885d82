"""The logs of attempts."""

from collections.abc import Sequence
from typing import Protocol


class Logs(Protocol):
    """The logs of attempts, as bytes."""

    async def append(self, build_id: str, fence: int, offset: int, data: bytes) -> None:
        """Store bytes at the end of a log for good; `offset` is where the log ends."""
        ...

    def begin(self, build_id: str, fence: int, note: bytes) -> None:
        """Begin a log with bytes of the router's own."""
        ...

    def size(self, build_id: str, fence: int) -> int:
        """Return how many bytes are stored."""
        ...

    async def read(self, build_id: str, fence: int, offset: int, limit: int) -> bytes:
        """Return stored bytes; fewer than `limit` at the end."""
        ...

    async def hide(self, build_id: str, fence: int, offset: int, length: int) -> None:
        """Write stars over stored bytes."""
        ...

    async def drop(self, build_id: str) -> None:
        """Delete the logs of a build; those that are not there are no error."""
        ...

    def untouched(self, before: float) -> Sequence[str]:
        """Return the builds to whose logs nothing was added since; seconds since the epoch."""
        ...
