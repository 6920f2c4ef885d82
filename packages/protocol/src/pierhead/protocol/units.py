"""Amounts as people read them, and how much of a disk is left alone."""

from typing import Final

# For the database of a control plane, and whatever else is on the disk.
DISK_KEPT_BYTES: Final = 512 * 1024 * 1024


def size(count: int) -> str:
    """Return a number of bytes for people: 1.6 GB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def counted(count: int, what: str) -> str:
    """Return how many there are of something: 1 build, 2 builds."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def cores(count: float) -> str:
    """Return a number of cores for people: 1 core, 2.5 cores."""
    return f"{count:g} core" if count == 1 else f"{count:g} cores"


def kept_bytes(disk_bytes: int) -> int:
    """Return how much of a disk builds, contexts and images leave free: of a small one, a fifth."""
    return min(DISK_KEPT_BYTES, disk_bytes // 5)
