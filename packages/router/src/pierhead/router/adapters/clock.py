"""The machine's clock."""

from datetime import UTC, datetime


class SystemClock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)
