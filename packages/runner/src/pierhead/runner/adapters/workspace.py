"""The context on the runner's disk: fetched, unpacked without trusting it, and checked.

Every member is made below one folder by descriptors that never follow a link, so no name, link or
order of members leads outside. No build sees the folder before the digest of the whole tree was
seen to be right: what is cut or changed on its way never builds.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import zstandard

from pierhead.protocol.archive import ArchiveError, Kind, Member, Reader
from pierhead.protocol.context import normal_mode, safe_parts
from pierhead.protocol.digest import same_digest
from pierhead.protocol.errors import IntegrityError, Unavailable
from pierhead.protocol.plan import ContextRef
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import CHUNK_BYTES, TreeDigest, describe
from pierhead.runner.adapters.spool import LogSpool
from pierhead.runner.domain.failure import Disk
from pierhead.runner.ports import Hold
from pierhead.runner.removal import remove_tree

# Calls one after the other that bring nothing: the router may be restarted in between.
CUTS_MAX: Final = 60
AGAIN_SECONDS: Final = 1.0
# zstd makes incompressible bytes a little longer, and each frame has a header.
_MORE_BYTES: Final = 1024 * 1024
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class DiskWorkspace:
    """The folder of one attempt, below the runner's state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        remove_tree(folder)  # of an attempt of this name nothing can be wanted any more
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def folder(self) -> Path:
        """Where the backend may work."""
        return self._folder

    async def fetch(self, hold: Hold, wanted: ContextRef) -> Path:
        """Fetch, unpack and check the context; return its folder."""
        packed, root = self._folder / "context.tar.zst", self._folder / "context"
        await fetch(hold.context, wanted, packed)
        unwanted = threading.Event()
        working = asyncio.ensure_future(asyncio.to_thread(unpack, packed, root, wanted, unwanted))
        try:
            await asyncio.shield(working)
        finally:
            # A thread goes on after whoever waits for it is gone, and this one fills the disk.
            unwanted.set()
            await asyncio.wait({working})
            working.exception()  # it was asked to end, or it is raised above
        packed.unlink()
        return root

    def disk(self) -> Disk:
        """Look at the disk that it is on."""
        return disk_of(self._folder)

    def spool(self, hold: Hold) -> LogSpool:
        """Begin the log, beside the folder: it outlives what the backend clears away."""
        return LogSpool(self._folder.with_name(self._folder.name + ".log"), hold)

    async def remove(self) -> None:
        """Remove all of it."""
        await asyncio.to_thread(remove_tree, self._folder)
        self._folder.with_name(self._folder.name + ".log").unlink(missing_ok=True)


def disk_of(folder: Path) -> Disk:
    """Look at the disk that a folder is on."""
    found = shutil.disk_usage(folder)
    return Disk(str(folder), found.free, found.total)


async def fetch(
    read: Callable[[int], AsyncIterator[bytes]], wanted: ContextRef, file: Path
) -> None:
    """Fetch a packed context, going on after cuts.

    Raises:
        IntegrityError: it is longer than what was promised can be.
        Unavailable: it was cut too often.
    """
    limit = wanted.unpacked_bytes + wanted.unpacked_bytes // 100 + _MORE_BYTES
    size, cuts, whole = 0, 0, False
    with file.open("wb") as output:
        while not whole:
            before = size
            with contextlib.suppress(Unavailable):
                async for chunk in read(size):
                    output.write(chunk)
                    size += len(chunk)
                    if size > limit:
                        detail = f"the context does not end after {limit} bytes"
                        raise IntegrityError(problem("digest-mismatch", detail))
                whole = True
            if not whole and size == before:
                cuts += 1
                await asyncio.sleep(AGAIN_SECONDS)
            if cuts > CUTS_MAX:
                raise Unavailable(problem("dependency-unavailable", "the context does not come"))


def unpack(
    file: Path, root: Path, wanted: ContextRef, unwanted: threading.Event | None = None
) -> None:
    """Unpack a context into a new folder, and check that it is the one that was promised.

    `unwanted`: once it is set, the rest is left out, and it ends as one that was cut.

    Raises:
        IntegrityError: it is damaged, or another tree.
        ArchiveError: it holds what has no place in a context, or more than was said.
    """
    root.mkdir()
    descriptor = os.open(root, _FOLDER_FLAGS)
    folders = _Folders(descriptor)
    try:
        with file.open("rb") as packed:
            decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
            with decompressor.stream_reader(packed, read_across_frames=True) as stream:
                bounded = _Bounded(stream, wanted.unpacked_bytes, unwanted or threading.Event())
                reader = Reader(bounded)
                found = _unpack_all(reader, folders, wanted)
    except zstandard.ZstdError as error:
        damaged = problem("digest-mismatch", f"the context came damaged: {error}")
        raise IntegrityError(damaged) from error
    except ValueError as error:
        raise ArchiveError(f"the context cannot be unpacked: {error}") from error  # a NUL in a name
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise ArchiveError(f"the context cannot be unpacked: {error.strerror}") from error
    finally:
        folders.close()
        os.close(descriptor)
    if not same_digest(found, wanted.digest):
        detail = f"the context that came is {found}, not {wanted.digest}"
        raise IntegrityError(problem("digest-mismatch", detail))


class _Bounded:
    """Ends a stream that goes on beyond what was said: a small file can unpack to a huge one."""

    def __init__(
        self, stream: zstandard.ZstdDecompressionReader, limit: int, unwanted: threading.Event
    ) -> None:
        self._stream = stream
        self._left = limit
        self._unwanted = unwanted

    def read(self, size: int, /) -> bytes:
        if self._unwanted.is_set():
            return b""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveError("the context is larger than it was said to be")
        return data


class _Folders:
    """Descriptors of the folder that is being filled, and of those above it."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: list[tuple[bytes, int]] = []

    def at(self, parts: tuple[bytes, ...]) -> int:
        """Return the descriptor of a folder below the root, made where it is missing.

        Raises:
            OSError: a part of it is a link or a file.
        """
        same = 0
        while same < min(len(parts), len(self._open)) and self._open[same][0] == parts[same]:
            same += 1
        self._close_below(same)
        for part in parts[same:]:
            above = self._open[-1][1] if self._open else self._root
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=above)
            self._open.append((part, os.open(part, _FOLDER_FLAGS, dir_fd=above)))
        return self._open[-1][1] if self._open else self._root

    def close(self) -> None:
        """Close all."""
        self._close_below(0)

    def _close_below(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])


def _unpack_all(reader: Reader, folders: _Folders, wanted: ContextRef) -> str:
    """Unpack all members, and return the digest of the tree that they are."""
    tree, count = TreeDigest(), 0
    for member in reader.members():
        count += member.kind is not Kind.FOLDER
        if count > wanted.files:
            raise ArchiveError("the context has more files than it was said to have")
        parts = safe_parts(member)
        if not parts:
            raise ArchiveError("the context names its own root")
        size, rest = _make(reader, member, folders.at(parts[:-1]), parts[-1])
        executable = member.kind is not Kind.LINK and member.mode & 0o111 != 0
        tree.add(describe(member.kind, b"/".join(parts), executable, size, rest))
    return tree.digest()


def _make(reader: Reader, member: Member, folder: int, name: bytes) -> tuple[int, bytes]:
    """Make a member; return what describes it, beside its name."""
    match member.kind:
        case Kind.FOLDER:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
            return 0, b""
        case Kind.LINK:
            os.symlink(member.target, name, dir_fd=folder)
            return len(member.target), member.target
        case Kind.FILE:
            return member.size, _write(reader, member, folder, name)
        case Kind.HARD_LINK:
            raise ArchiveError("the context has a hard link; files of one content are two files")


def _write(reader: Reader, member: Member, folder: int, name: bytes) -> bytes:
    """Write a file, and return the digests of its chunks."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    digests = b""
    descriptor = os.open(name, flags, normal_mode(member.mode), dir_fd=folder)
    try:
        for chunk in _chunks(reader, member.size):
            digests += hashlib.sha256(chunk).digest()
            written = 0
            while written < len(chunk):
                written += os.write(descriptor, memoryview(chunk)[written:])
        os.fchmod(descriptor, normal_mode(member.mode))
        os.utime(descriptor, (member.mtime, member.mtime))
    finally:
        os.close(descriptor)
    return digests


def _chunks(reader: Reader, size: int) -> Iterator[bytes]:
    for offset in range(0, size, CHUNK_BYTES):
        wanted = min(CHUNK_BYTES, size - offset)
        chunk = reader.read(wanted)
        while len(chunk) < wanted:
            chunk += reader.read(wanted - len(chunk))
        yield chunk
