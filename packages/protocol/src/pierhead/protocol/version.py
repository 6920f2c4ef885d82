"""Versions of the wire protocol, and the headers that go with it.

A request carries the version that its sender speaks. Each side speaks the newest one and up to two
before it, and each version only ever adds to the one before: unknown fields are ignored. So two
sides that were released far apart still find a version that both speak, or say which is the older.
"""

from typing import Final, NamedTuple

PROTOCOL: Final = 1
PROTOCOL_HEADER: Final = "Pierhead-Protocol"
FENCE_HEADER: Final = "Pierhead-Fence"
OFFSET_HEADER: Final = "Upload-Offset"
# Of an answer: pins of the authorities by which to believe the control plane, from now on.
AUTHORITIES_HEADER: Final = "Pierhead-Authorities"
RELEASE: Final = "0.1.0"


class Versions(NamedTuple):
    """The versions that one side speaks, from the oldest to the newest."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def common(self, other: "Versions") -> int | None:
        """Return the newest version that both sides speak, if there is one."""
        newest = min(self.high, other.high)
        return newest if newest in self and newest in other else None


SPOKEN: Final = Versions(low=max(1, PROTOCOL - 2), high=PROTOCOL)
