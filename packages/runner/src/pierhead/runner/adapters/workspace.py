"""The context on the runner's disk: fetched, checked, then unpacked without trusting it.

Nothing is unpacked before the digest of all its bytes was seen to be right. Then every member is
made below one folder by descriptors that never follow a link, so no name, link or order of members
leads outside.
"""

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import zstandard

from pierhead.protocol.archive import ArchiveError, Kind, Member, Reader
from pierhead.protocol.context import link_parts, normal_mode, safe_parts
from pierhead.protocol.digest import RunningDigest, same_digest
from pierhead.protocol.errors import IntegrityError, Unavailable
from pierhead.protocol.plan import ContextRef
from pierhead.protocol.problem import problem
from pierhead.runner.adapters.spool import LogSpool
from pierhead.runner.ports import Hold

# Calls one after the other that bring nothing: the router may be restarted in between.
CUTS_MAX: Final = 60
AGAIN_SECONDS: Final = 1.0
_PIECE: Final = 1024 * 1024
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class DiskWorkspace:
    """The folder of one attempt, below the runner's state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    @property
    def folder(self) -> Path:
        """Where the backend may work."""
        return self._folder

    async def fetch(self, hold: Hold, wanted: ContextRef) -> Path:
        """Fetch, check and unpack the context; return its folder."""
        packed, root = self._folder / "context.tar.zst", self._folder / "context"
        await fetch(hold.context, wanted, packed)
        await asyncio.to_thread(unpack, packed, root, wanted)
        packed.unlink()
        return root

    def spool(self, hold: Hold) -> LogSpool:
        """Begin the log, beside the folder: it outlives what the backend clears away."""
        return LogSpool(self._folder.with_name(self._folder.name + ".log"), hold)

    async def remove(self) -> None:
        """Remove all of it."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.with_name(self._folder.name + ".log").unlink(missing_ok=True)


async def fetch(
    read: Callable[[int], AsyncIterator[bytes]], wanted: ContextRef, file: Path
) -> None:
    """Fetch a packed context, going on after cuts, and check it.

    Raises:
        IntegrityError: it is not what was promised.
        Unavailable: it was cut too often.
    """
    running, cuts = RunningDigest(), 0
    with file.open("wb") as output:
        while running.size_bytes < wanted.size_bytes:
            before = running.size_bytes
            with contextlib.suppress(Unavailable):
                async for chunk in read(running.size_bytes):
                    running.update(chunk)
                    output.write(chunk)
                    if running.size_bytes > wanted.size_bytes:
                        break
            if running.size_bytes == before:
                cuts += 1
                await asyncio.sleep(AGAIN_SECONDS)
            if cuts > CUTS_MAX:
                raise Unavailable(problem("dependency-unavailable", "the context does not come"))
            if running.size_bytes > wanted.size_bytes:
                break
    if not same_digest(running.digest(), wanted.digest):
        detail = f"the context that came is {running.digest()}, not {wanted.digest}"
        raise IntegrityError(problem("digest-mismatch", detail))


def unpack(file: Path, root: Path, wanted: ContextRef) -> None:
    """Unpack a checked context into a new folder.

    Raises:
        ArchiveError: it holds what has no place in a context, or more than was said.
    """
    root.mkdir()
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        with file.open("rb") as packed:
            decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
            with decompressor.stream_reader(packed) as stream:
                _unpack_all(Reader(_Bounded(stream, wanted.unpacked_bytes)), descriptor, wanted)
    except zstandard.ZstdError as error:
        raise ArchiveError(f"the context is not zstd: {error}") from error
    except ValueError as error:
        raise ArchiveError(f"the context cannot be unpacked: {error}") from error  # a NUL in a name
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise ArchiveError(f"the context cannot be unpacked: {error.strerror}") from error
    finally:
        os.close(descriptor)


class _Bounded:
    """Ends a stream that goes on beyond what was said: a small file can unpack to a huge one."""

    def __init__(self, stream: zstandard.ZstdDecompressionReader, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError("the context is larger than it was said to be")
        return data


def _unpack_all(reader: Reader, root: int, wanted: ContextRef) -> None:
    count = 0
    for member in reader.members():
        count += member.kind is not Kind.FOLDER
        if count > wanted.files:
            raise ArchiveError("the context has more files than it was said to have")
        parts = safe_parts(member)
        if not parts:
            continue
        folder = _open_folder(root, parts[:-1])
        try:
            _make(reader, member, folder, parts[-1], root)
        finally:
            os.close(folder)


def _open_folder(root: int, parts: tuple[bytes, ...]) -> int:
    """Return a descriptor of a folder below the root, made where it is missing.

    Raises:
        OSError: a part of it is a link or a file.
    """
    current = os.dup(root)
    for part in parts:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=current)
        try:
            following = os.open(part, _FOLDER_FLAGS, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def _make(reader: Reader, member: Member, folder: int, name: bytes, root: int) -> None:
    match member.kind:
        case Kind.FOLDER:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
        case Kind.LINK:
            os.symlink(member.target, name, dir_fd=folder)
        case Kind.HARD_LINK:
            _link(member, folder, name, root)
        case Kind.FILE:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            descriptor = os.open(name, flags, normal_mode(member.mode), dir_fd=folder)
            with os.fdopen(descriptor, "wb") as output:
                while data := reader.read(_PIECE):
                    output.write(data)
                output.flush()
                os.fchmod(descriptor, normal_mode(member.mode))
                os.utime(descriptor, (member.mtime, member.mtime))


def _link(member: Member, folder: int, name: bytes, root: int) -> None:
    *parents, last = link_parts(member) or (b"",)
    source = _open_folder(root, tuple(parents))
    try:
        os.link(last, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(source)
