"""What nobody can know beforehand: the time, and random values."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The wall clock, in UTC."""

    def now(self) -> datetime:
        """Return the time."""
        ...


class Entropy(Protocol):
    """Where ids and secrets come from."""

    def id(self, prefix: str) -> str:
        """Return a short id with a prefix, like `b_7f3kq2`."""
        ...

    def secret(self) -> str:
        """Return 256 random bits as text."""
        ...
