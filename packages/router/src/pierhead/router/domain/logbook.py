"""The log of an attempt, by byte offsets, and where a reader of the event stream stands.

A part that begins where the stored bytes end is appended; one that overlaps them is trimmed; a gap
is refused with the offset to go on from. So a log never has a hole, and never holds a byte twice.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from pierhead.protocol.plan import PLATFORMS_MAX
from pierhead.router.domain.errors import InvalidRequest, OffsetMismatch

PART_BYTES_MAX: Final = 256 * 1024
LOG_BYTES_MAX: Final = 64 * 1024**2

_CURSOR: Final = re.compile(r"(\d{1,12})\.(\d{1,12})\Z")


def skip(stored: int, offset: int, length: int) -> int:
    """Return how many bytes of a part at `offset` are stored already.

    Raises:
        OffsetMismatch: bytes between the stored ones and the part are missing.
    """
    if offset > stored:
        detail = f"the log has {stored} bytes, the part begins at {offset}"
        raise OffsetMismatch(detail, next_offset=stored)
    return min(stored - offset, length)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader has seen all events up to `sequence`, and `offset` bytes of the current log.

    Of a build for several platforms, `children` has the places in what each of them tells.
    """

    sequence: int = 0
    offset: int = 0
    children: "tuple[Cursor, ...]" = ()

    def __str__(self) -> str:
        return "-".join([f"{self.sequence}.{self.offset}", *map(str, self.children)])


def parse_cursor(text: str) -> Cursor:
    """Return the cursor that a `Last-Event-ID` holds.

    Raises:
        InvalidRequest: it is not one of ours.
    """
    places = [_CURSOR.match(part) for part in text.split("-", PLATFORMS_MAX)]
    found = [Cursor(int(place[1]), int(place[2])) for place in places if place]
    if len(found) < len(places):
        raise InvalidRequest(f"{text[:40]!r} is not a cursor of an event stream")
    return replace(found[0], children=tuple(found[1:]))
