"""Where bytes are that somebody else will read."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a file that does not change."""

    path: Path
    offset: int
    length: int
