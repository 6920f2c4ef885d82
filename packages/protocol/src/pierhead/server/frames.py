"""zstd as it comes from outside: in pieces of bounded size, and whole or not at all.

The library's own readers end at a cut without a word, as if what was lost had never been there.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

import zstandard

# A block of four bytes may stand for 128 KiB (RFC 8878, 3.1.1.2): so this becomes 32 MiB at most.
_STEP_BYTES: Final = 1024


def unframed(source: BinaryIO, window_bytes: int) -> Iterator[bytes]:
    """Yield what the frames in a file hold; none of them may need a larger window.

    Raises:
        zstandard.ZstdError: it is no zstd, or damaged.
        EOFError: it ends in the middle of a frame.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes)
    frame = None
    while step := source.read(_STEP_BYTES):
        while step:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(step)
            step = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("it ends in the middle of a frame")
