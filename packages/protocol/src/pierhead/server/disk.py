"""What a disk has to give: room, and the right to write; and how it is told when it has not."""

import errno
import os
import resource
import tempfile
from pathlib import Path
from typing import Final

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import Problem, problem
from pierhead.protocol.units import kept_bytes, size
from pierhead.protocol.users import user_name

# What a start needs at the least, for the database's own files.
START_BYTES: Final = 2 * 1024 * 1024
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})
_NO_FOLDER: Final = frozenset({errno.EEXIST, errno.ENOTDIR})


def require_usable(folder: Path, *, elsewhere: str) -> None:
    """Make a folder if there is none, and see that this process can keep its data in it.

    `elsewhere`: what to type for another folder.

    Raises:
        Unavailable: it cannot, and why (`storage-full` when there is no room).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, START_BYTES)
    except OSError as error:
        raise Unavailable(_unusable(folder, error, elsewhere)) from error


def _unusable(folder: Path, error: OSError, elsewhere: str) -> Problem:
    there = _existing(folder)
    if error.errno in _FULL:
        disk = os.statvfs(there)
        free, whole = (size(blocks * disk.f_frsize) for blocks in (disk.f_bavail, disk.f_blocks))
        detail = f"the disk of {folder} is full: {free} of {whole} are free"
        hint = f"free some space there, or keep the data elsewhere: {elsewhere}"
        return problem("storage-full", detail, hint=hint)
    hint = f"keep the data elsewhere: {elsewhere}"
    if error.errno == errno.EROFS:
        detail = f"the disk of {folder} is mounted for reading only"
        hint = f"mount it for writing, or {hint}"
    elif error.errno in _NO_FOLDER:
        below = f"a folder has to be there: {folder}" if there != folder else "no folder"
        detail = f"{there} is a file, and {below}"
    elif error.errno == errno.EFBIG:
        most = size(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
        detail = f"no file may become larger than {most} here, and {folder} needs more"
        hint = "ulimit -f unlimited"
    elif error.errno in _FORBIDDEN:
        detail = f"{there} belongs to {user_name(there.stat().st_uid)}, and you may not write there"
        hint = f"be {user_name(there.stat().st_uid)}, or {hint}"
    else:
        detail = f"{folder} cannot be used: {error.strerror}"
    return problem("dependency-unavailable", detail, hint=hint)


def _existing(folder: Path) -> Path:
    """Return the last part of a path that is there and can be seen."""
    for path in (folder, *folder.parents):
        try:
            path.stat()
        except OSError:
            continue
        return path
    return Path("/")


def leave_room(descriptor: int) -> None:
    """Go on if what comes may be written: on a full disk not even a heartbeat can be noted.

    Raises:
        OSError: so little of the disk is left that it is kept for the database.
    """
    disk = os.fstatvfs(descriptor)
    if disk.f_bavail * disk.f_frsize < kept_bytes(disk.f_blocks * disk.f_frsize):
        raise OSError(errno.ENOSPC, "its disk is nearly full")


class storage_errors:
    """Turns a full or broken disk into `Unavailable`, with what to do."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            full = error.errno in _FULL
            slug = "storage-full" if full else "dependency-unavailable"
            hint = "free some space on the control plane's disk" if full else None
            found = problem(slug, f"could not store it: {error.strerror}", hint=hint)
            raise Unavailable(found) from error
