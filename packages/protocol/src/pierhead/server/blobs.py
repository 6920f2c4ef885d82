"""Content by digest on a local disk, and uploads that grow part by part.

A blob appears under its digest only after its bytes were hashed and flushed, by one rename: a
reader never sees half of one. An upload knows its own size, so a part that does not begin where
the last one ended is refused, and one that was cut is resumed from there.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from pierhead.protocol.digest import Digest, parse_digest, same_digest
from pierhead.protocol.errors import IntegrityError, Invalid, Refused, Unavailable
from pierhead.protocol.problem import problem

# Pieces of this size keep the event loop responsive and the number of thread hops small.
PIECE_BYTES: Final = 1024 * 1024
ABANDONED_SECONDS: Final = 24 * 3600
_UPLOAD_ID: Final = re.compile(r"u_[a-z0-9]{8,64}\Z")
T = TypeVar("T")


@dataclass(slots=True)
class _Upload:
    """An upload under way: how far it is and the hash of its bytes so far."""

    size: int = 0
    hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class BlobStore:
    """All blobs of a control plane, under one folder."""

    def __init__(self, root: Path, *, new_id: Callable[[], str]) -> None:
        self._blobs = root / "blobs" / "sha256"
        self._staged = root / "uploads"
        self._new_id = new_id
        self._uploads: dict[str, _Upload] = {}
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._staged.mkdir(parents=True, exist_ok=True)

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
        """Begin an upload and return its id, which ends with `mark`: letters and digits."""
        upload_id = self._new_id() + mark
        with _storage_errors():
            self._file(upload_id).touch(exist_ok=False)
        self._uploads[upload_id] = _Upload()
        return upload_id

    async def offset(self, upload_id: str) -> int:
        """Return how many bytes an upload has."""
        return (await self._upload(upload_id)).size

    async def append(
        self, upload_id: str, offset: int, chunks: AsyncIterator[bytes], limit_bytes: int
    ) -> int:
        """Add bytes at the end of an upload and return its new size.

        What arrived before an error or a cut stays, and counts.

        Raises:
            Refused: `offset-mismatch`, with the offset to go on from.
            Invalid: the upload would be over `limit_bytes`.
            Unavailable: the disk is full.
        """
        upload = await self._upload(upload_id)
        async with upload.lock:
            self._require_current(upload_id, upload)
            if offset != upload.size:
                detail = f"the upload has {upload.size} bytes, the part begins at {offset}"
                found = problem("offset-mismatch", detail, next_offset=upload.size)
                raise Refused(found)
            with self._file(upload_id).open("r+b") as file:
                async for piece in _pieces(chunks):
                    if upload.size + len(piece) > limit_bytes:
                        raise Invalid(problem("too-large", f"more than {limit_bytes} bytes"))
                    await _to_the_end(_write, file.fileno(), upload, piece)
            return upload.size

    async def commit(self, upload_id: str, digest: str) -> int:
        """Turn an upload into a blob and return its size.

        Raises:
            IntegrityError: the bytes have another digest; the upload is gone.
        """
        upload = await self._upload(upload_id)
        async with upload.lock:
            self._require_current(upload_id, upload)
            found = Digest("sha256:" + upload.hash.hexdigest())
            if not same_digest(found, digest):
                await self.discard(upload_id)
                detail = f"the content is {found}, not {digest}"
                raise IntegrityError(problem("digest-mismatch", detail))
            await _to_the_end(_keep, self._file(upload_id), self.path(digest))
            self._uploads.pop(upload_id, None)
            return upload.size

    async def discard(self, upload_id: str) -> None:
        """Forget an upload; harmless when it is gone."""
        self._uploads.pop(upload_id, None)
        self._file(upload_id).unlink(missing_ok=True)

    async def delete(self, digest: str) -> None:
        """Remove a blob; harmless when it is gone."""
        self.path(digest).unlink(missing_ok=True)

    def sweep(self, now: float) -> None:
        """Remove uploads that nobody went on with for a day. `now`: seconds since the epoch."""
        for file in self._staged.iterdir():
            with suppress(FileNotFoundError):  # it was committed meanwhile
                if now - file.stat().st_mtime > ABANDONED_SECONDS:
                    self._uploads.pop(file.name, None)
                    file.unlink()

    def _file(self, upload_id: str) -> Path:
        if not _UPLOAD_ID.match(upload_id):
            raise Refused(problem("not-found", "there is no such upload"))
        return self._staged / upload_id

    async def _upload(self, upload_id: str) -> _Upload:
        known = self._uploads.get(upload_id)
        if known is not None:
            return known
        file = self._file(upload_id)
        if not file.exists():
            raise Refused(problem("not-found", "there is no such upload"))
        # The server was restarted since: what is on the disk is what arrived.
        upload = await asyncio.to_thread(_reread, file)
        return self._uploads.setdefault(upload_id, upload)

    def _require_current(self, upload_id: str, upload: _Upload) -> None:
        """Raise `not-found` when it ended while its caller waited for its turn."""
        if self._uploads.get(upload_id) is not upload:
            raise Refused(problem("not-found", "there is no such upload"))


async def _to_the_end(function: Callable[..., T], *arguments: object) -> T:
    """Run a function in a thread; a cancelled caller still waits, for the thread uses its file."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join small chunks, so that each thread hop is worth it; what came before a cut comes too."""
    piece = bytearray()
    try:
        async for chunk in chunks:
            piece += chunk
            if len(piece) >= PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    except Exception:
        if piece:
            yield bytes(piece)
        raise
    if piece:
        yield bytes(piece)


def _write(descriptor: int, upload: _Upload, piece: bytes) -> None:
    """Write a piece whole, or leave the file as long as it was."""
    with _storage_errors():
        try:
            written = 0
            while written < len(piece):
                rest = memoryview(piece)[written:]
                written += os.pwrite(descriptor, rest, upload.size + written)
        except OSError:
            os.ftruncate(descriptor, upload.size)
            raise
    upload.hash.update(piece)
    upload.size += len(piece)


def _keep(staged: Path, final: Path) -> None:
    """Flush a file and give it its final name, so that a power cut leaves all of it or nothing."""
    with _storage_errors():
        new_folder = not final.parent.exists()
        final.parent.mkdir(exist_ok=True)
        with staged.open("rb") as file:
            os.fsync(file.fileno())
        staged.replace(final)
        _flush_names(final.parent)
        if new_folder:
            _flush_names(final.parent.parent)


def _flush_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reread(file: Path) -> _Upload:
    upload = _Upload()
    with file.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            upload.hash.update(piece)
            upload.size += len(piece)
    return upload


class _storage_errors:
    """Turns a full or broken disk into `Unavailable`, with what to do."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            full = error.errno in {28, 122}  # ENOSPC, EDQUOT
            slug = "storage-full" if full else "dependency-unavailable"
            hint = "free some space on the control plane's disk" if full else None
            found = problem(slug, f"could not store it: {error.strerror}", hint=hint)
            raise Unavailable(found) from error
