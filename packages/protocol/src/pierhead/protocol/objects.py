"""Content on its way to the control plane: many small objects in one zstd frame, frame by frame.

A body is frames, each after its length; a frame holds objects, each after its length. A large
object is a frame alone, without a length inside, and the highest bit of the frame's length says so:
such a frame can become a part of an archive as it is. No digest travels with an object: whoever
gets it has to compute it anyway, and then it cannot be wrong.
"""

import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

import zstandard

from pierhead.protocol.tree import CHUNK_BYTES

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
FRAME_BYTES: Final = 1024 * 1024  # a frame is full; a larger object has one of its own
FRAME_BYTES_MAX: Final = CHUNK_BYTES + FRAME_BYTES
ALONE_BYTES: Final = 256 * 1024  # from this size on, an object is a frame alone
OBJECTS_MEDIA_TYPE: Final = "application/vnd.pierhead.objects"
LEVEL: Final = 3
_LENGTH: Final = struct.Struct(">I")
_ALONE: Final = 1 << 31


class FrameError(Exception):
    """The bytes are not frames of objects."""


class Frame(NamedTuple):
    """A frame as it came."""

    packed: bytes
    alone: bool

    def objects(self) -> Iterator[tuple[int, bytes]]:
        """Yield where each object begins in what the frame holds, and its bytes.

        Raises:
            FrameError: it is no frame, or its objects do not fit.
        """
        raw = inside(self.packed)
        if not self.alone:
            yield from objects_in(raw)
        elif len(raw) > CHUNK_BYTES:
            raise FrameError("an object of a frame is too large")
        else:
            yield 0, raw


def frame(objects: Sequence[bytes], *, level: int = LEVEL) -> bytes:
    """Return one frame, with its length before it."""
    if len(objects) == 1 and len(objects[0]) >= ALONE_BYTES:
        packed = compressed(objects[0], level=level)
        return _LENGTH.pack(_ALONE | len(packed)) + packed
    raw = b"".join(_LENGTH.pack(len(data)) + data for data in objects)
    packed = compressed(raw, level=level)
    return _LENGTH.pack(len(packed)) + packed


def compressed(raw: bytes, *, level: int = LEVEL) -> bytes:
    """Return a zstd frame that knows its size, and notices when a bit of it was changed."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(raw)


def holds(packed: bytes) -> int:
    """Return how many bytes a frame says that it holds; -1 where it does not."""
    try:
        return int(zstandard.frame_content_size(packed))
    except zstandard.ZstdError:
        return -1


def inside(packed: bytes) -> bytes:
    """Return what a frame holds, never more than a frame may.

    Raises:
        FrameError: it is none, or holds more.
    """
    try:
        size = holds(packed)
        if not 0 <= size <= FRAME_BYTES_MAX:
            raise FrameError(f"a frame says its size, and holds at most {FRAME_BYTES_MAX} bytes")
        raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise FrameError(f"a frame is not zstd: {error}") from error
    if len(raw) != size:
        raise FrameError("a frame is not as long as it says")
    return raw


def objects_in(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield where each object of a frame begins, and its bytes.

    Raises:
        FrameError: the lengths do not fit.
    """
    at = 0
    while at < len(raw):
        if at + _LENGTH.size > len(raw):
            raise FrameError("an object of a frame is cut")
        (size,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        data = raw[at : at + size]
        if len(data) != size or size > CHUNK_BYTES:
            raise FrameError("an object of a frame is cut, or too large")
        yield at, data
        at += size


async def frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """Yield the frames of a body, without their lengths, as they arrive.

    Raises:
        FrameError: a frame is too long, or the last one is cut.
    """
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        while len(waiting) >= _LENGTH.size:
            (told,) = _LENGTH.unpack_from(waiting)
            size = told & ~_ALONE
            if size > FRAME_BYTES_MAX:
                raise FrameError("a frame is too long")
            if len(waiting) < _LENGTH.size + size:
                break
            packed = bytes(memoryview(waiting)[_LENGTH.size : _LENGTH.size + size])
            yield Frame(packed, alone=told != size)
            del waiting[: _LENGTH.size + size]
    if waiting:
        raise FrameError("the last frame is cut")
