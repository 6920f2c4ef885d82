"""Amounts as people read them."""


def size(count: int) -> str:
    """Return a number of bytes for people: 1.6 GB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
