"""What the uploads of one owner may hold that have not ended: so many of them, and so many bytes.

Who begins uploads and ends none takes room from nobody else. When an owner's share is full, those
go that nobody went on with for a while; only when there are none of these is an upload refused.
Nothing here touches a disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.problem import problem
from pierhead.protocol.units import size as told

RETRY_MS: Final = 10_000


class Held(NamedTuple):
    """An upload that has not ended. `touched`: when bytes last came, seconds since the epoch."""

    name: str
    size: int
    touched: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much that is. Twenty pushes of an image at once, by five layers each, fit easily."""

    uploads: int = 128
    size_bytes: int = 128 * 1024**3
    disk_part: int = 2  # and no more than the disk's size by this
    idle_seconds: float = 900.0

    def given_up(self, held: Sequence[Held], *, now: float, disk_bytes: int) -> list[str]:
        """Return which uploads have to go, so that all others of an owner may stay.

        One alone may be as large as any.

        Raises:
            Unavailable: there are too many (`rate-limited`), and bytes come in for all of them.
        """
        count, size = len(held), sum(one.size for one in held)
        most = min(self.size_bytes, disk_bytes // self.disk_part)
        idle = sorted(
            (one for one in held if now - one.touched > self.idle_seconds),
            key=lambda one: one.touched,
        )
        gone: list[str] = []
        while count > self.uploads or (size > most and count > 1):
            if not idle:
                raise self._full(count, size)
            one = idle.pop(0)
            count, size = count - 1, size - one.size
            gone.append(one.name)
        return gone

    def _full(self, count: int, size: int) -> PierheadError:
        if count > self.uploads:
            detail = f"{count - 1} uploads of this repository are under way"
        else:
            detail = f"the uploads of this repository that are under way have {told(size)}"
        hint = "end some of them, or give them up; then push again"
        return Unavailable(problem("rate-limited", detail, hint=hint, retry_after_ms=RETRY_MS))
