"""What zstd frames hold comes whole, in small pieces, or not at all."""

import io

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pierhead.server.frames import unframed

WINDOW = 2**23


def held(data: bytes) -> bytes:
    return b"".join(unframed(io.BytesIO(data), WINDOW))


@given(st.lists(st.binary(max_size=5000), max_size=4))
def test_all_frames_are_read(contents: list[bytes]) -> None:
    assert held(b"".join(map(zstandard.compress, contents))) == b"".join(contents)


@given(st.data(), st.binary(min_size=1, max_size=5000), st.binary(max_size=5000))
def test_a_cut_is_noticed_wherever_it_is(data: st.DataObject, first: bytes, then: bytes) -> None:
    whole = zstandard.compress(first) + zstandard.compress(then)
    between = {0, len(zstandard.compress(first))}
    at = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: at not in between))

    with pytest.raises((EOFError, zstandard.ZstdError)):
        held(whole[:at])


def test_a_frame_that_stands_for_much_comes_in_pieces() -> None:
    bomb = zstandard.compress(bytes(2**28))
    assert len(bomb) < 2**15

    sizes = [len(piece) for piece in unframed(io.BytesIO(bomb), WINDOW)]

    assert sum(sizes) == 2**28
    assert max(sizes) <= 2**25


def test_a_frame_that_needs_a_larger_window_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=24)
    frame = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    data = frame.compress(bytes(2**24 + 1)) + frame.flush()

    with pytest.raises(zstandard.ZstdError):
        held(data)


def test_what_is_no_frame_is_refused() -> None:
    for data in (b"what is no frame", zstandard.compress(b"x") + b"what is no frame"):
        with pytest.raises(zstandard.ZstdError):
            held(data)
