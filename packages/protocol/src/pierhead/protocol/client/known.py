"""What was seen of a folder the last time, so that what did not change is not read again.

A file is taken as unchanged when its size, times and inode are what they were. A file that was
changed in the moment in which it was read could look the same ever after; so, as git does it, what
was changed only just before is not remembered, and read again the next time.
"""

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import Final

import msgspec

# The coarsest times that a file system in use has are two seconds apart (FAT).
SETTLED_NS: Final = 2 * 10**9
KEPT_SECONDS: Final = 30 * 24 * 3600


class _Seen(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a file looked, and the digests of its content; the collector need not look at it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digests: bytes

    def is_still(self, status: os.stat_result) -> bool:
        """Say whether a file looks as it did."""
        return (
            self.mtime_ns == status.st_mtime_ns
            and self.size == status.st_size
            and self.ctime_ns == status.st_ctime_ns
            and self.inode == status.st_ino
        )


class _Document(msgspec.Struct, array_like=True):
    version: int
    root: bytes
    files: dict[bytes, _Seen]


_VERSION: Final = 1


class Known:
    """What is known of the files of one folder."""

    def __init__(self, before: dict[bytes, _Seen] | None = None) -> None:
        self._before = before or {}
        self._now: dict[bytes, _Seen] = {}
        self._settled_ns = time.time_ns() - SETTLED_NS

    def __contains__(self, name: bytes) -> bool:
        """Say whether a file of this name was there."""
        return name in self._before

    def find(self, name: bytes, status: os.stat_result) -> bytes | None:
        """Return the digests of a file that is as it was; none: it has to be read."""
        seen = self._before.get(name)
        if seen is None or not seen.is_still(status):
            return None
        self._now[name] = seen
        return seen.digests

    def note(self, name: bytes, status: os.stat_result, digests: bytes) -> None:
        """Remember a file that was read."""
        if max(status.st_mtime_ns, status.st_ctime_ns) < self._settled_ns:
            self._now[name] = _Seen(
                status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, digests
            )

    @classmethod
    def load(cls, root: Path, folder: Path | None = None) -> "Known":
        """Return what is remembered of a folder; nothing, when that cannot be read."""
        try:
            found = msgspec.msgpack.decode(_file(root, folder).read_bytes(), type=_Document)
        except (OSError, msgspec.MsgspecError):
            return cls()
        ours = found.version == _VERSION and found.root == os.fsencode(root.resolve())
        return cls(found.files if ours else None)

    def save(self, root: Path, folder: Path | None = None) -> None:
        """Remember it for the next time. It is only a help: a full disk is no error."""
        file = _file(root, folder)
        document = _Document(_VERSION, os.fsencode(root.resolve()), self._now)
        if self._now == self._before:
            with contextlib.suppress(OSError):
                os.utime(file)
            return
        fresh = file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as output:
                output.write(msgspec.msgpack.encode(document))
            fresh.replace(file)
            _forget_old(file.parent)


def _file(root: Path, folder: Path | None) -> Path:
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return (folder or _folder()) / f"{name}.seen"


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "pierhead" / "contexts"


def _forget_old(folder: Path) -> None:
    oldest = time.time() - KEPT_SECONDS  # noqa: TID251 - compared with file times
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()
