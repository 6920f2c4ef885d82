"""Looks at what the kernel shows while it changes: what has gone meanwhile is not an error.

A process or a cgroup can end between the look at a list and the look at its members.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def words_in(file: Path) -> str:
    """Return what a file says; nothing when it has gone, or its process has."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def said_of(pid: int, name: str) -> str:
    """Return a file of /proc/PID (proc(5)); nothing of a process that has gone."""
    return words_in(Path(f"/proc/{pid}/{name}"))


def is_gone(pid: int) -> bool:
    """Say whether a process has ended, though nobody may have collected it."""
    state = said_of(pid, "stat").rpartition(")")[2].split()
    return not state or state[0] in {"Z", "X"}


def written_below(folder: Path) -> bytes:
    """Return the content of all files below a folder, but of those that go meanwhile."""
    content = []
    for file in all_below(folder):
        with contextlib.suppress(OSError):  # a folder, too
            content.append(file.read_bytes())
    return b"".join(content)


def all_below(folder: Path) -> Iterator[Path]:
    """Yield all folders and files below a folder; `Path.rglob` fails when one goes meanwhile."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))
