"""Tars on their way in, on the disk, and plain when they are read, whatever compressed them."""

import gzip
import tempfile
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from pierhead.protocol.errors import Invalid
from pierhead.protocol.plan import CONTEXT_BYTES_MAX
from pierhead.protocol.problem import problem
from pierhead.server.disk import leave_room, storage_errors
from pierhead.server.frames import unframed
from pierhead.server.threads import in_thread

_PIECE_BYTES: Final = 1024 * 1024
# Headers and padding of a million small files are about a gigabyte.
_TAR_BYTES_MAX: Final = CONTEXT_BYTES_MAX + 2**30
_WINDOW_BYTES: Final = 2**27  # as zstd allows without being told (zstd(1), --long)
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class DiskIncoming:
    """Keeps tars in a folder while they are needed; they have no name there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @asynccontextmanager
    async def tar(self, body: AsyncIterator[bytes]) -> AsyncIterator[BinaryIO]:
        """Give a body as a plain tar.

        Raises:
            Invalid: it is too large, or damaged.
        """
        with self._file() as came, self._file() as plain:
            size = 0
            async for chunk in body:
                size += len(chunk)
                _require_bound(size)
                await in_thread(_write, came, chunk)
            yield await in_thread(_plain, came, plain)

    def _file(self) -> BinaryIO:
        with storage_errors():
            return cast("BinaryIO", tempfile.TemporaryFile(dir=self._folder))


def _plain(came: BinaryIO, plain: BinaryIO) -> BinaryIO:
    """Return the file that is the plain tar, from its beginning on."""
    came.seek(0)
    magic = came.read(4)
    came.seek(0)
    if magic == _ZSTD:
        _copy(unframed(came, _WINDOW_BYTES), plain)
    elif magic[:2] == _GZIP:
        unzipped = gzip.GzipFile(fileobj=came)
        _copy(iter(lambda: unzipped.read(_PIECE_BYTES), b""), plain)
    else:
        return came
    plain.seek(0)
    return plain


def _copy(pieces: Iterator[bytes], target: BinaryIO) -> None:
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            _require_bound(size)
            _write(target, piece)
    except (zstandard.ZstdError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        detail = f"the context is neither a tar nor one that is gzip or zstd: {error}"
        hint = "send it plain: tar c . | ..."
        raise Invalid(problem("invalid-document", detail, hint=hint)) from error


def _write(file: BinaryIO, piece: bytes) -> None:
    with storage_errors():
        leave_room(file.fileno())
        file.write(piece)


def _require_bound(size: int) -> None:
    if size > _TAR_BYTES_MAX:
        detail = f"the tar is larger than {_TAR_BYTES_MAX // 2**30} GiB"
        hint = "leave out what the build does not need: tar c --exclude=node_modules . | ..."
        raise Invalid(problem("context-too-large", detail, hint=hint))
