"""Why a process that was just started ended, in its own words: the end of what it wrote."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

LOOKED_AT_BYTES: Final = 64 * 1024
_ERROR: Final = "error: "
_HINT: Final = "hint: "


class LastWords(NamedTuple):
    """An error as every command of ours says it."""

    error: str
    hint: str


def words_in(text: str) -> LastWords | None:
    """Return the last error with its hint in what a process said; none: it said none."""
    found, hint = None, None
    for line in text.splitlines():
        if line.startswith(_ERROR):
            found, hint = line.removeprefix(_ERROR), None
        elif line.startswith(_HINT) and found is not None and hint is None:
            hint = line.removeprefix(_HINT)
    return LastWords(found, hint) if found is not None and hint is not None else None


def words_of_file(log: Path, since: int) -> LastWords | None:
    """Return the last error in a file, after so many bytes of it."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(since, end - LOOKED_AT_BYTES))
            return words_in(file.read(LOOKED_AT_BYTES).decode("utf-8", "replace"))
    except OSError:
        return None


def words_of_command(command: Sequence[str]) -> LastWords | None:
    """Return the last error in what a command prints: of a journal."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return words_in(done.stdout[-LOOKED_AT_BYTES:].decode("utf-8", "replace"))


def size_of(log: Path) -> int:
    """Return how long a file is before a process adds to it."""
    return log.stat().st_size if log.exists() else 0
