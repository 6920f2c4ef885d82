"""Content by digest on a local disk, and uploads that grow part by part.

A blob appears under its digest only after its bytes were hashed and flushed, by one rename: a
reader never sees half of one. An upload knows its own size, so a part that does not begin where
the last one ended is refused, and one that was cut is resumed from there.

Several processes may use one folder. What an upload holds is its file; a process that finds it
longer than it remembers reads it again. Whoever writes to an upload, or ends it, has its lock.
"""

import asyncio
import fcntl
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from pierhead.protocol.digest import Digest, parse_digest, same_digest
from pierhead.protocol.errors import IntegrityError, Invalid, PierheadError, Refused, Unavailable
from pierhead.protocol.problem import problem
from pierhead.server.disk import leave_room, storage_errors
from pierhead.server.share import Held, Share
from pierhead.server.threads import ended, in_thread

# Pieces of this size keep the event loop responsive and the number of thread hops small.
PIECE_BYTES: Final = 1024 * 1024
CHUNKS_MAX: Final = 512  # half of what one pwritev(2) takes (IOV_MAX)
# So much of an upload waits for the disk at most: a heartbeat's commit may have to wait for it too.
FLUSH_BYTES: Final = 32 * 1024 * 1024
ABANDONED_SECONDS: Final = 24 * 3600
STALLED_SECONDS: Final = 60.0  # a sender that is silent for longer is gone
_BUSY_SECONDS: Final = 30.0
_UPLOAD_ID: Final = re.compile(r"u_[a-z0-9]{8,64}(_[a-z0-9]{1,32}){0,2}\Z")
# What an upload gives up with: what it holds is what is missing, or it can never become whole.
_GIVEN_UP: Final = {"storage-full", "rate-limited", "too-large"}
T = TypeVar("T")


@dataclass(slots=True)
class _Upload:
    """An upload under way: how far it is and the hash of its bytes so far."""

    size: int = 0
    hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sender: "asyncio.Future[None] | None" = None  # whose bytes are coming in
    arrived: int = 0  # bytes that this process was sent, written or not


class BlobStore:
    """All blobs of a control plane, under one folder."""

    def __init__(
        self,
        root: Path,
        *,
        new_id: Callable[[], str],
        now: Callable[[], float] | None = None,
        share: Share | None = None,
    ) -> None:
        """Open the store under a folder. `now`: seconds since the epoch, if not the system's.

        `share`: what one owner's uploads may hold, if not the usual.
        """
        self._now = now
        self._share = share or Share()
        self._blobs = root / "blobs" / "sha256"
        self._staged = root / "uploads"
        self._trash = root / "trash"
        self._new_id = new_id
        self._uploads: dict[str, _Upload] = {}
        for folder in (self._blobs, self._staged, self._trash):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Return where a blob is, whether or not it is there."""
        plain = parse_digest(digest).removeprefix("sha256:")
        return self._blobs / plain[:2] / plain

    async def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes; none: it is not there."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, digest: str, limit_bytes: int) -> bytes:
        """Return a small blob, or the first `limit_bytes` of a larger one."""
        with self.path(digest).open("rb") as file:
            return file.read(limit_bytes)

    async def begin(self, mark: str = "") -> str:
        """Begin an upload and return its id, which ends with `_` and the mark.

        `mark`: letters and digits that say whose it is, `OWNER` or `OWNER_FOR`; the uploads of an
        owner count together. Without one, none is counted.

        Raises:
            Unavailable: the owner has too many already (`rate-limited`), or the disk is full.
        """
        upload_id = f"{self._new_id()}_{mark}" if mark else self._new_id()
        await in_thread(self._make, self._file(upload_id))
        self._uploads[upload_id] = _Upload()
        return upload_id

    def _make(self, file: Path) -> None:
        with storage_errors(), self._counting():
            file.touch(exist_ok=False)
            try:
                self._require_share(file.name)
            except BaseException:
                file.unlink()
                raise

    def open_uploads(self) -> list[str]:
        """Return the ids of all uploads that have not ended."""
        return [file.name for file in self._staged.iterdir()]

    def _require_share(self, upload_id: str) -> None:
        """Give up what an owner has too much of, or refuse what he begins or goes on with."""
        owner = _owner(upload_id)
        if not owner:
            return
        held = [*self._held_by(owner)]
        newest = max((one.touched for one in held), default=0.0)
        disk = os.statvfs(self._staged)
        size = disk.f_blocks * disk.f_frsize
        for name in self._share.given_up(held, now=newest, disk_bytes=size):
            self._file(name).unlink(missing_ok=True)

    def _held_by(self, owner: str) -> Iterator[Held]:
        with os.scandir(self._staged) as entries:
            for entry in entries:
                if _owner(entry.name) == owner:
                    with suppress(FileNotFoundError):
                        told = entry.stat(follow_symlinks=False)
                        yield Held(entry.name, told.st_size, told.st_mtime)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Hold the right to count uploads, against this process and all others."""
        folder = os.open(self._staged, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    async def offset(self, upload_id: str) -> int:
        """Return how many bytes an upload has."""
        upload = await self._upload(upload_id)
        if upload.sender is None:
            await self._catch_up(upload_id, upload)
        return upload.size

    async def append(
        self, upload_id: str, offset: int, chunks: AsyncIterator[bytes], limit_bytes: int
    ) -> int:
        """Add bytes at the end of an upload and return its new size.

        What arrived before an error or a cut stays, and counts. Whoever goes on exactly at the
        end takes over from a sender that has not been seen to be gone. When the disk is full the
        upload is given up, since what it holds is what is missing; so is one that is too large, or
        for which its owner has no room.

        Raises:
            Refused: `offset-mismatch`, with the offset to go on from.
            Invalid: the upload would be over `limit_bytes`.
            Unavailable: the disk is full, or all uploads of the owner are too large together.
        """
        upload = await self._upload(upload_id)
        if upload.sender is not None:
            _require_end(offset, upload.size)
            upload.sender.cancel()
        async with self._held(upload_id, upload):
            _require_end(offset, upload.size)
            upload.sender = asyncio.ensure_future(
                self._take(upload_id, upload, chunks, limit_bytes)
            )
            watch = asyncio.ensure_future(_end_when_silent(upload.sender, upload))
            try:
                await self._unless_superseded(upload_id, upload)
            except (Unavailable, Invalid) as error:
                if error.problem.slug in _GIVEN_UP:
                    await self.discard(upload_id)
                raise
            finally:
                watch.cancel()
                upload.sender = None
            return upload.size

    async def _take(
        self, upload_id: str, upload: _Upload, chunks: AsyncIterator[bytes], limit_bytes: int
    ) -> None:
        """Write what comes; while one piece is hashed and written, the next one is received."""
        writing: asyncio.Future[None] | None = None
        with self._file(upload_id).open("r+b") as file:
            try:
                async for piece in _pieces(_counted(chunks, upload)):
                    if writing is not None:
                        await asyncio.shield(writing)
                    if upload.size + sum(map(len, piece)) > limit_bytes:
                        raise Invalid(problem("too-large", f"more than {limit_bytes} bytes"))
                    writing = asyncio.ensure_future(
                        asyncio.to_thread(self._add, upload_id, file.fileno(), upload, piece)
                    )
            finally:
                if writing is not None:
                    await ended(writing)

    async def _unless_superseded(self, upload_id: str, upload: _Upload) -> None:
        """Wait for a sender; one that was too slow, or taken over from, is told where it ended."""
        assert upload.sender is not None
        try:
            await upload.sender
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            if self._uploads.get(upload_id) is not upload:
                raise _unknown() from None
            detail = "another request went on with this upload, or nothing came for too long"
            found = problem("offset-mismatch", detail, next_offset=upload.size)
            raise Refused(found) from None

    def _add(self, upload_id: str, descriptor: int, upload: _Upload, piece: list[bytes]) -> None:
        before = upload.size
        _write(descriptor, upload, piece)
        if upload.size // FLUSH_BYTES > before // FLUSH_BYTES:
            if not os.fstat(descriptor).st_nlink:
                raise _unknown()  # another process ended it
            with self._counting():
                self._require_share(upload_id)

    async def commit(self, upload_id: str, digest: str) -> int:
        """Turn an upload into a blob and return its size.

        Raises:
            IntegrityError: the bytes have another digest; the upload is gone.
        """
        upload = await self._upload(upload_id)
        async with self._held(upload_id, upload):
            found = Digest("sha256:" + upload.hash.hexdigest())
            if not same_digest(found, digest):
                await self.discard(upload_id)
                detail = f"the content is {found}, not {digest}"
                raise IntegrityError(problem("digest-mismatch", detail))
            await in_thread(self._keep, upload_id, digest)
            self._uploads.pop(upload_id, None)
            return upload.size

    def _keep(self, upload_id: str, digest: str) -> None:
        """Flush a file and give it its final name, so that a power cut leaves it whole or not."""
        staged, final = self._file(upload_id), self.path(digest)
        with storage_errors():
            new_folder = not final.parent.exists()
            final.parent.mkdir(exist_ok=True)
            with staged.open("rb") as file:
                os.fsync(file.fileno())
            with self._names(fcntl.LOCK_SH):
                # The sweep goes by it.
                os.utime(staged, (self._now(), self._now()) if self._now else None)
                staged.replace(final)
            _flush_names(final.parent)
            if new_folder:
                _flush_names(final.parent.parent)

    def written(self, upload_id: str) -> int:
        """Return how many bytes of an upload of this process are on the disk; 0: it has ended."""
        known = self._uploads.get(upload_id)
        return known.size if known is not None else 0

    def reading(self, upload_id: str, digest: str) -> BinaryIO:
        """Open an upload to read along, or the blob of this digest that it became.

        Raises:
            FileNotFoundError: it is neither.
        """
        try:
            return self._file(upload_id).open("rb", buffering=0)
        except FileNotFoundError:
            return self.path(digest).open("rb", buffering=0)

    async def discard(self, upload_id: str) -> None:
        """Forget an upload, with whatever still comes in for it; harmless when it is gone."""
        file = self._file(upload_id)
        known = self._uploads.pop(upload_id, None)
        if known is not None and known.sender is not None:
            known.sender.cancel()
        await in_thread(lambda: file.unlink(missing_ok=True))

    async def delete(self, digest: str) -> None:
        """Remove a blob; harmless when it is gone."""
        self.path(digest).unlink(missing_ok=True)

    def sweep(self, now: float) -> None:
        """Remove uploads that nobody went on with for a day. `now`: seconds since the epoch."""
        for gone in [name for name in list(self._uploads) if not self._file(name).exists()]:
            self._uploads.pop(gone, None)  # another process ended it
        for file in self._staged.iterdir():
            with suppress(FileNotFoundError):  # it was committed meanwhile
                if now - file.stat().st_mtime > ABANDONED_SECONDS:
                    self._uploads.pop(file.name, None)
                    file.unlink()

    def shards(self) -> list[str]:
        """Return the names of the folders that blobs are in."""
        return sorted(folder.name for folder in self._blobs.iterdir())

    def settled(self, shard: str, before: float) -> list[Digest]:
        """Return the blobs of a folder that were committed before a time."""
        with os.scandir(self._blobs / shard) as entries:
            return [
                Digest("sha256:" + entry.name)
                for entry in entries
                if entry.stat(follow_symlinks=False).st_mtime < before
            ]

    def take_away(self, digests: Sequence[str], before: float) -> int:
        """Take blobs out of sight, but for those that were committed anew; return how many went.

        Quick, for the caller holds the database's writer meanwhile: `empty_trash` gives the space
        back. Nobody commits while it runs.
        """
        taken = 0
        with self._names(fcntl.LOCK_EX):
            for digest in digests:
                file = self.path(digest)
                with suppress(FileNotFoundError):
                    if file.stat().st_mtime < before:
                        file.replace(self._trash / file.name)
                        taken += 1
        return taken

    def empty_trash(self) -> int:
        """Give back the space of what was taken away, and return how many bytes that was."""
        freed = 0
        for file in self._trash.iterdir():
            with suppress(FileNotFoundError):
                freed += file.stat().st_size
                file.unlink()
        return freed

    @contextmanager
    def _names(self, kind: int) -> Iterator[None]:
        """Hold the right to give blobs their names (shared) or to take them (exclusive)."""
        with (self._blobs.parent / ".lock").open("a") as file:
            fcntl.flock(file, kind)
            yield

    def _file(self, upload_id: str) -> Path:
        if not _UPLOAD_ID.match(upload_id):
            raise _unknown()
        return self._staged / upload_id

    async def _upload(self, upload_id: str) -> _Upload:
        known = self._uploads.get(upload_id)
        if known is None:
            if not self._file(upload_id).exists():
                raise _unknown()
            # Begun by another process, or before a restart: what is on the disk is what arrived.
            known = self._uploads.setdefault(upload_id, _Upload())
            async with known.lock:
                await self._catch_up(upload_id, known)
        return known

    async def _catch_up(self, upload_id: str, upload: _Upload) -> None:
        """Read the file again if another process changed it."""
        try:
            if self._file(upload_id).stat().st_size != upload.size:
                await asyncio.to_thread(_reread, self._file(upload_id), upload)
        except FileNotFoundError:
            self._uploads.pop(upload_id, None)
            raise _unknown() from None

    @asynccontextmanager
    async def _held(self, upload_id: str, upload: _Upload) -> AsyncIterator[None]:
        """Hold an upload, against this process and all others, as it is now."""
        async with upload.lock:
            if self._uploads.get(upload_id) is not upload:
                raise _unknown()  # it ended while its caller waited for its turn
            try:
                file = self._file(upload_id).open("rb")
            except FileNotFoundError:
                self._uploads.pop(upload_id, None)
                raise _unknown() from None
            with file:
                await _lock(file)
                await self._catch_up(upload_id, upload)
                yield


def _owner(upload_id: str) -> str:
    """Return whose an upload is, by its id; empty: nobody's in particular."""
    return (*upload_id.split("_"), "", "")[2]


def _unknown() -> PierheadError:
    return Refused(problem("not-found", "there is no such upload", hint="begin a new one"))


def _require_end(offset: int, size: int) -> None:
    if offset != size:
        detail = f"the upload has {size} bytes, the part begins at {offset}"
        raise Refused(problem("offset-mismatch", detail, next_offset=size))


async def _lock(file: BinaryIO) -> None:
    """Wait for another process to be done with an upload.

    Raises:
        Unavailable: it is not, for long.
    """
    for _ in range(int(_BUSY_SECONDS / 0.05)):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(0.05)
    raise Unavailable(problem("dependency-unavailable", "the upload is in use; try again"))


async def _counted(chunks: AsyncIterator[bytes], upload: _Upload) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        upload.arrived += len(chunk)
        yield chunk


async def _end_when_silent(sender: "asyncio.Future[None]", upload: _Upload) -> None:
    """Cancel a sender from which nothing came for a while."""
    before = -1
    while before != upload.arrived:
        before = upload.arrived
        await asyncio.sleep(STALLED_SECONDS)
    sender.cancel()


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Gather chunks, so that each thread hop is worth it; what came before a cut comes too."""
    piece: list[bytes] = []
    size = 0
    try:
        async for chunk in chunks:
            piece.append(chunk)
            size += len(chunk)
            if size >= PIECE_BYTES or len(piece) == CHUNKS_MAX:
                yield piece
                piece, size = [], 0
    except Exception:
        if piece:
            yield piece
        raise
    if piece:
        yield piece


def _write(descriptor: int, upload: _Upload, piece: list[bytes]) -> None:
    """Write a piece whole, or leave the file as long as it was."""
    size = sum(map(len, piece))
    with storage_errors():
        leave_room(descriptor)
        try:
            written = 0
            while written < size:
                rest = [*_after(piece, written)] if written else piece
                written += os.pwritev(descriptor, rest, upload.size + written)
        except OSError:
            os.ftruncate(descriptor, upload.size)
            raise
        if (upload.size + size) // FLUSH_BYTES > upload.size // FLUSH_BYTES:
            os.fdatasync(descriptor)
    for chunk in piece:
        upload.hash.update(chunk)
    upload.size += size


def _after(piece: list[bytes], skipped: int) -> Iterator[memoryview]:
    """Yield what is left of chunks after so many bytes of them."""
    for chunk in piece:
        if skipped < len(chunk):
            yield memoryview(chunk)[skipped:]
        skipped = max(skipped - len(chunk), 0)


def _flush_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reread(file: Path, upload: _Upload) -> None:
    size, running = 0, hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            running.update(piece)
            size += len(piece)
    upload.size, upload.hash = size, running
