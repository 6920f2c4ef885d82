"""Objects come out of a body as they went in, and a body that is none is refused."""

import os
import struct
from collections.abc import AsyncIterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.objects import (
    ALONE_BYTES,
    FRAME_BYTES_MAX,
    Frame,
    FrameError,
    compressed,
    frame,
    frames,
    holds,
    inside,
    objects_in,
)
from pierhead.protocol.tree import CHUNK_BYTES


async def arriving(data: bytes, *, size: int = 7) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@given(st.lists(st.lists(st.binary(max_size=50)), max_size=4), st.integers(1, 200))
async def test_objects_arrive_whole_however_the_body_is_cut(
    groups: list[list[bytes]], size: int
) -> None:
    body = b"".join(map(frame, groups))
    found = [arrived async for arrived in frames(arriving(body, size=size))]
    assert [[data for _, data in arrived.objects()] for arrived in found] == groups
    for arrived in found:
        raw = inside(arrived.packed)
        assert all(raw[at : at + len(data)] == data for at, data in arrived.objects())


async def test_a_large_object_is_a_frame_that_holds_nothing_else() -> None:
    large, small = os.urandom(ALONE_BYTES), os.urandom(ALONE_BYTES - 1)
    body = frame([small]) + frame([large]) + frame([large, small])
    found = [arrived async for arrived in frames(arriving(body, size=2**16))]
    assert [arrived.alone for arrived in found] == [False, True, False]
    assert [[*arrived.objects()] for arrived in found] == [
        [(4, small)],
        [(0, large)],
        [(4, large), (8 + len(large), small)],
    ]
    assert inside(found[1].packed) == large
    assert [holds(arrived.packed) == len(large) for arrived in found] == [False, True, False]


def test_an_object_alone_is_no_larger_than_another() -> None:
    with pytest.raises(FrameError, match="too large"):
        list(Frame(compressed(bytes(CHUNK_BYTES + 1)), alone=True).objects())


async def test_what_came_before_a_cut_is_given_first() -> None:
    body = frame([b"first"]) + frame([b"second"])[:-1]
    seen: list[bytes] = []

    async def look() -> None:
        async for arrived in frames(arriving(body)):
            seen.extend(data for _, data in arrived.objects())

    with pytest.raises(FrameError, match="cut"):
        await look()
    assert seen == [b"first"]


async def test_a_frame_that_says_it_is_huge_is_not_waited_for() -> None:
    with pytest.raises(FrameError, match="too long"):
        async for _ in frames(arriving(struct.pack(">I", FRAME_BYTES_MAX + 1))):
            pass


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"not zstd",
        compressed(b"x" * 1000)[:-1],
        compressed(os.urandom(100))[:50] + bytes(1) + compressed(os.urandom(100))[51:],
        zstandard.compress(bytes(FRAME_BYTES_MAX + 1)),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"of no size"),
    ],
)
def test_a_frame_that_is_none_or_holds_too_much_is_refused(packed: bytes) -> None:
    with pytest.raises(FrameError):
        inside(packed)


@pytest.mark.parametrize(
    "raw",
    [
        b"abc",
        struct.pack(">I", 5) + b"four",
        struct.pack(">I", CHUNK_BYTES + 1) + bytes(CHUNK_BYTES + 1),
    ],
)
def test_an_object_that_is_cut_or_too_large_is_refused(raw: bytes) -> None:
    with pytest.raises(FrameError):
        list(objects_in(raw))
