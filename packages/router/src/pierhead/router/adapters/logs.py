"""Logs in plain files, one for each attempt, flushed to the disk before anybody is told."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem


class FileLogs:
    """The logs of all attempts under one folder: `<build>/<fence>.log`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def append(self, build_id: str, fence: int, offset: int, data: bytes) -> None:
        """Store bytes at the end of a log for good."""
        await asyncio.to_thread(_append, self._file(build_id, fence), offset, data)

    def begin(self, build_id: str, fence: int, note: bytes) -> None:
        """Begin a log with bytes of the router's own."""
        _append(self._file(build_id, fence), 0, note)

    def size(self, build_id: str, fence: int) -> int:
        """Return how many bytes are stored."""
        try:
            return self._file(build_id, fence).stat().st_size
        except FileNotFoundError:
            return 0

    async def read(self, build_id: str, fence: int, offset: int, limit: int) -> bytes:
        """Return stored bytes; fewer than `limit` at the end."""
        return await asyncio.to_thread(_read, self._file(build_id, fence), offset, limit)

    async def hide(self, build_id: str, fence: int, offset: int, length: int) -> None:
        """Write stars over stored bytes."""
        await asyncio.to_thread(_append, self._file(build_id, fence), offset, b"*" * length)

    async def drop(self, build_id: str) -> None:
        """Delete the logs of a build; those that are not there are no error."""
        await asyncio.to_thread(shutil.rmtree, self._root / build_id, ignore_errors=True)

    def untouched(self, before: float) -> Sequence[str]:
        """Return the builds to whose logs nothing was added since; seconds since the epoch."""
        try:
            folders = list(self._root.iterdir())
        except FileNotFoundError:
            return []
        return [folder.name for folder in folders if _latest(folder) < before]

    def _file(self, build_id: str, fence: int) -> Path:
        return self._root / build_id / f"{fence}.log"


def _latest(folder: Path) -> float:
    return max(path.stat().st_mtime for path in [folder, *folder.iterdir()])


def _append(file: Path, offset: int, data: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o640)
        try:
            _write_whole(descriptor, offset, data)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        detail = f"the log could not be stored: {error.strerror}"
        raise Unavailable(problem("storage-full", detail)) from error


def _write_whole(descriptor: int, offset: int, data: bytes) -> None:
    """Write all of it or, on a full disk, nothing."""
    before = os.fstat(descriptor).st_size
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], offset + done)
    except OSError:
        os.ftruncate(descriptor, before)
        raise


def _read(file: Path, offset: int, limit: int) -> bytes:
    try:
        with file.open("rb") as stream:
            # The end of the file is looked for, as no file can be as long as some offsets say.
            stream.seek(min(offset, os.fstat(stream.fileno()).st_size))
            return stream.read(limit)
    except FileNotFoundError:
        return b""
