"""Where the steps of a Dockerfile begin in a log, by what the builder prints.

It writes for people, one line at a time; a line counts once its end is there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# A Dockerfile's instruction may be longer; its step is then not told apart from the output.
LINE_BYTES_MAX: Final = 4096
NAME_MAX: Final = 200
_LINE: Final = re.compile(
    rb"^(?:(?:(?P<stage>\[\d{1,4}/\d{1,4}\] ))?STEP (?P<of>\d{1,4}/\d{1,4}): (?P<what>[^\n]*)"
    rb"|(?P<cached>--> Using cache)[^\n]*)\n",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the builder. `name` none: the step before came from the cache."""

    end: int  # where the line ends, in bytes from the log's beginning
    name: str | None


def marks(data: bytes, at: int, after: int) -> Sequence[Mark]:
    """Return the marks whose lines end behind `after`. `data` begins at `at`, with a line."""
    return [
        Mark(at + found.end(), _name(found))
        for found in _LINE.finditer(data)
        if at + found.end() > after
    ]


def _name(found: re.Match[bytes]) -> str | None:
    if found["cached"]:
        return None
    text = (found["stage"] or b"") + found["of"] + b" " + found["what"]
    return text.decode("utf-8", "replace").rstrip("\r")[:NAME_MAX]
