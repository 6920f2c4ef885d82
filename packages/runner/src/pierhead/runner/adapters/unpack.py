"""An archive becomes the folder that a build sees: without trusting it, and checked.

Every member is made below one folder by descriptors that never follow a link, so no name, link or
order of members leads outside. No build sees the folder before the digest of the whole tree was
seen to be right: what is cut or changed on its way never builds.

The folder may hold what an earlier build of the project had. Then each file in it is compared with
what comes, byte by byte, and only what differs is written: of twenty thousand files mostly one.
"""

import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import zstandard

from pierhead.protocol.archive import ArchiveError, Kind, Member, Reader
from pierhead.protocol.context import normal_mode, safe_parts
from pierhead.protocol.digest import same_digest
from pierhead.protocol.errors import IntegrityError
from pierhead.protocol.plan import ContextRef
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import CHUNK_BYTES, TreeDigest, describe, order
from pierhead.runner.removal import remove_tree

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# Not blocking: of a pipe that somebody put there, nothing would ever come.
_FILE_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
Parts = tuple[bytes, ...]


def unpack(
    file: Path, root: Path, wanted: ContextRef, unwanted: threading.Event | None = None
) -> None:
    """Unpack a context into a folder, and check that it is the one that was promised.

    What the folder holds already is made use of, or removed. `unwanted`: once it is set, the rest
    is left out, and it ends as one that was cut.

    Raises:
        IntegrityError: it is damaged, or another tree.
        ArchiveError: it holds what has no place in a context, or more than was said.
    """
    unwanted = unwanted or threading.Event()
    if root.is_dir():
        try:
            return _unpack(file, root, wanted, unwanted, _Patched)
        except (ArchiveError, IntegrityError):
            if unwanted.is_set():
                raise
            remove_tree(root)  # whether it was this, or the archive, is seen without it
    root.mkdir()
    return _unpack(file, root, wanted, unwanted, _Fresh)


def _unpack(
    file: Path,
    root: Path,
    wanted: ContextRef,
    unwanted: threading.Event,
    kind: "type[_Fresh]",
) -> None:
    descriptor = os.open(root, _FOLDER_FLAGS)
    folder = kind(descriptor)
    try:
        with file.open("rb") as packed:
            decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
            with decompressor.stream_reader(packed, read_across_frames=True) as stream:
                bounded = _Bounded(stream, wanted.unpacked_bytes, unwanted)
                found = _unpack_all(Reader(bounded), folder, wanted)
        folder.finish()
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
        folder.close()
        os.close(descriptor)
    if not same_digest(found, wanted.digest):
        detail = f"the context that came is {found}, not {wanted.digest}"
        raise IntegrityError(problem("digest-mismatch", detail))


def _unpack_all(reader: Reader, folder: "_Fresh", wanted: ContextRef) -> str:
    """Unpack all members, and return the digest of the tree that they are."""
    tree, count = TreeDigest(), 0
    for member in reader.members():
        count += member.kind is not Kind.FOLDER
        if count > wanted.files:
            raise ArchiveError("the context has more files than it was said to have")
        parts = safe_parts(member)
        if not parts:
            raise ArchiveError("the context names its own root")
        folder.begin(parts)
        size, rest = _make(reader, member, folder, parts)
        executable = member.kind is not Kind.LINK and member.mode & 0o111 != 0
        tree.add(describe(member.kind, b"/".join(parts), executable, size, rest))
    return tree.digest()


def _make(reader: Reader, member: Member, folder: "_Fresh", parts: Parts) -> tuple[int, bytes]:
    """Make a member; return what describes it, beside its name."""
    match member.kind:
        case Kind.FOLDER:
            folder.make_folder(parts)
            return 0, b""
        case Kind.LINK:
            folder.make_link(parts, member.target)
            return len(member.target), member.target
        case Kind.FILE:
            return member.size, folder.write(parts, member, _chunks(reader, member.size))
        case Kind.HARD_LINK:
            raise ArchiveError("the context has a hard link; files of one content are two files")


def _chunks(reader: Reader, size: int) -> Iterator[bytes]:
    for offset in range(0, size, CHUNK_BYTES):
        wanted = min(CHUNK_BYTES, size - offset)
        chunk = reader.read(wanted)
        while len(chunk) < wanted:
            chunk += reader.read(wanted - len(chunk))
        yield chunk


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


class _Fresh:
    """A folder that is filled from nothing; holds it open, and those below it that it is in."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: list[tuple[bytes, int]] = []

    def begin(self, parts: Parts) -> None:
        """Begin a member; what is there twice is noticed when it is made."""

    def make_folder(self, parts: Parts) -> None:
        """Make a folder, if it is not there."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(parts[-1], 0o755, dir_fd=self._at(parts[:-1]))

    def make_link(self, parts: Parts, target: bytes) -> None:
        """Make a link."""
        os.symlink(target, parts[-1], dir_fd=self._at(parts[:-1]))

    def write(self, parts: Parts, member: Member, chunks: Iterator[bytes]) -> bytes:
        """Write a file, and return the digests of its chunks."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        mode = normal_mode(member.mode)
        descriptor = os.open(parts[-1], flags, mode, dir_fd=self._at(parts[:-1]))
        digests, offset = b"", 0
        try:
            for chunk in chunks:
                digests += hashlib.sha256(chunk).digest()
                offset += _write_at(descriptor, chunk, offset)
            os.fchmod(descriptor, mode)
            os.utime(descriptor, (member.mtime, member.mtime))
        finally:
            os.close(descriptor)
        return digests

    def finish(self) -> None:
        """End when all members are there."""

    def close(self) -> None:
        """Close what is open below the folder."""
        while self._open:
            os.close(self._open.pop()[1])

    def _at(self, parts: Parts) -> int:
        """Return the descriptor of a folder, made where it is missing.

        Raises:
            OSError: a part of it is a link or a file.
        """
        same = 0
        while same < min(len(parts), len(self._open)) and self._open[same][0] == parts[same]:
            same += 1
        while len(self._open) > same:
            self._leave()
        for part in parts[same:]:
            above = self._open[-1][1] if self._open else self._root
            self._open.append((part, self._enter(part, above)))
        return self._open[-1][1] if self._open else self._root

    def _enter(self, part: bytes, above: int) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=above)
        return os.open(part, _FOLDER_FLAGS, dir_fd=above)

    def _leave(self) -> None:
        os.close(self._open.pop()[1])


class _Patched(_Fresh):
    """A folder that holds another tree, and becomes this one. Members come in the tree's order."""

    def __init__(self, root: int) -> None:
        super().__init__(root)
        # What belongs into the folder, and into each of the open ones below it.
        self._names: list[set[bytes]] = [set()]
        self._last = b""

    def begin(self, parts: Parts) -> None:
        """Begin a member: after all before it, so none is there twice, and left folders stay left.

        Raises:
            ArchiveError: it is not.
        """
        name = order(b"/".join(parts))
        if name <= self._last:
            raise ArchiveError("the context is not in order")
        self._last = name

    def make_folder(self, parts: Parts) -> None:
        """Make a folder, or look into the one that is there: what does not belong is removed."""
        self._at(parts)

    def make_link(self, parts: Parts, target: bytes) -> None:
        """Make a link, or leave the one that is there."""
        folder, name = self._claim(parts)
        try:
            there = os.readlink(name, dir_fd=folder)
        except OSError:
            there = None
        if there != target:
            _discard(folder, name)
            super().make_link(parts, target)

    def write(self, parts: Parts, member: Member, chunks: Iterator[bytes]) -> bytes:
        """Write what differs of a file, and return the digests of its chunks."""
        folder, name = self._claim(parts)
        descriptor = _open_own(folder, name)
        if descriptor is None:
            _discard(folder, name)
            return super().write(parts, member, chunks)
        try:
            return _patch(descriptor, member, chunks)
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        """Remove what does not belong into the folders that are still open."""
        while self._open:
            self._leave()
        _purge(self._root, self._names[0])

    def _claim(self, parts: Parts) -> tuple[int, bytes]:
        folder = self._at(parts[:-1])
        self._names[-1].add(parts[-1])
        return folder, parts[-1]

    def _enter(self, part: bytes, above: int) -> int:
        self._names[-1].add(part)
        try:
            folder = os.open(part, _FOLDER_FLAGS, dir_fd=above)
        except OSError:
            _discard(above, part)
            folder = super()._enter(part, above)
        self._names.append(set())
        return folder

    def _leave(self) -> None:
        _purge(self._open[-1][1], self._names.pop())
        super()._leave()


def _patch(descriptor: int, member: Member, chunks: Iterator[bytes]) -> bytes:
    """Make a file what it should be; return the digests of its chunks."""
    before, mode, digests, offset = os.fstat(descriptor), normal_mode(member.mode), b"", 0
    same = before.st_size == member.size
    if not same:
        os.ftruncate(descriptor, member.size)
    for chunk in chunks:
        digests += hashlib.sha256(chunk).digest()
        if os.pread(descriptor, len(chunk), offset) != chunk:
            _write_at(descriptor, chunk, offset)
            same = False
        offset += len(chunk)
    if stat.S_IMODE(before.st_mode) != mode:
        os.fchmod(descriptor, mode)
    if not same or before.st_mtime_ns != member.mtime * 10**9:
        os.utime(descriptor, (member.mtime, member.mtime))
    return digests


def _write_at(descriptor: int, chunk: bytes, offset: int) -> int:
    written = 0
    while written < len(chunk):
        written += os.pwrite(descriptor, memoryview(chunk)[written:], offset + written)
    return written


def _open_own(folder: int, name: bytes) -> int | None:
    """Open a file, if it is one, is ours, and is known by this name alone."""
    try:
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=folder)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    return None


def _purge(folder: int, names: set[bytes]) -> None:
    """Remove what does not belong into a folder."""
    for found in map(os.fsencode, os.listdir(folder)):
        if found not in names:
            _discard(folder, found)


def _discard(folder: int, name: bytes) -> None:
    """Remove what is there by a name, if there is something."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError:
        remove_tree(Path(f"/proc/{os.getpid()}/fd/{folder}") / os.fsdecode(name))
