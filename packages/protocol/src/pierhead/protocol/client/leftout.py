"""How large things are, for people: what was left out, and what makes a context too large."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

# Looking at so many files takes a tenth of a second; what is left out may hold many more.
_LOOKS_MAX: Final = 20_000
_BIGGEST: Final = 5
_LARGE: Final = 200


class LeftOut(Struct, frozen=True):
    """Something that the ignore file leaves out."""

    path: str
    size_bytes: int
    whole: bool = True  # false: there is more than was looked at


def measured(root: bytes, names: Sequence[bytes]) -> list[LeftOut]:
    """Return how large things are, the largest first; it stops looking after a while."""
    looks = _LOOKS_MAX
    found = []
    for name in names:
        size, looks = _measure(os.path.join(root, name), looks)
        found.append(LeftOut(name.decode("utf-8", "replace"), size, looks > 0))
    return sorted(found, key=lambda one: -one.size_bytes)


def _measure(path: bytes, looks: int) -> tuple[int, int]:
    """Return the size of all that is below a path, and how many looks are left."""
    size, folders = 0, [path]
    with suppress(OSError):
        status = os.lstat(path)
        if not os.path.isdir(path) or os.path.islink(path):
            return status.st_size, looks - 1
    while folders and looks > 0:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                looks -= 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif looks > 0:
                    size += entry.stat(follow_symlinks=False).st_size
    return size, looks


def biggest(sizes: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return what is worth leaving out: at most five files or folders, the largest first.

    Names of folders end with a slash, but for the root's, which is empty. A folder that is large
    because of one thing in it gives way to that thing, and what is in a named one is not named.
    """
    largest = sorted(sizes, reverse=True)[:_LARGE]
    for_one = {
        folder
        for size, folder in largest
        for inner, path in largest
        if path != folder and _in(path, folder) and 2 * inner > size
    }
    named: list[tuple[int, bytes]] = []
    for size, path in largest:
        if path and path not in for_one and not any(_in(path, folder) for _, folder in named):
            named.append((size, path))
    return [(size, path.rstrip(b"/")) for size, path in named[:_BIGGEST]]


def _in(path: bytes, folder: bytes) -> bool:
    return path.startswith(folder) and (not folder or folder.endswith(b"/"))
