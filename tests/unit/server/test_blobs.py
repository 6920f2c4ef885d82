"""Blobs by digest: whatever way the bytes come in, and whatever goes wrong meanwhile."""

import asyncio
import errno
import hashlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.errors import IntegrityError, Invalid, Refused, Unavailable
from pierhead.server import blobs
from pierhead.server.blobs import ABANDONED_SECONDS, BlobStore
from pierhead.server.share import Share

LIMIT = 1_000_000


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


async def parts(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def opened(folder: Path, share: Share | None = None) -> BlobStore:
    numbers = itertools.count()
    return BlobStore(folder, new_id=lambda: f"u_{os.getpid():08}{next(numbers):04}", share=share)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return opened(tmp_path)


@settings(max_examples=50, deadline=None)
@given(
    pieces=st.lists(st.lists(st.binary(max_size=50), max_size=4), max_size=6),
    restart_before=st.integers(0, 6),
    piece_bytes=st.integers(1, 64),
)
async def test_any_split_into_parts_gives_the_same_blob(
    pieces: list[list[bytes]], restart_before: int, piece_bytes: int
) -> None:
    whole = b"".join(b"".join(part) for part in pieces)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(blobs, "PIECE_BYTES", piece_bytes)
        store, offset = opened(Path(folder)), 0
        upload = await store.begin()
        for number, part in enumerate(pieces):
            if number == restart_before:
                store = BlobStore(Path(folder), new_id=lambda: "u_other000")
            offset = await store.append(upload, offset, parts(*part), LIMIT)
        assert await store.commit(upload, digest_of(whole)) == len(whole)
        assert store.path(digest_of(whole)).read_bytes() == whole
        assert await store.size(digest_of(whole)) == len(whole)


async def test_a_part_that_does_not_go_on_is_refused_with_the_end(store: BlobStore) -> None:
    upload = await store.begin()
    await store.append(upload, 0, parts(b"0123"), LIMIT)
    for offset in (0, 3, 5):
        with pytest.raises(Refused) as refused:
            await store.append(upload, offset, parts(b"x"), LIMIT)
        assert refused.value.problem.slug == "offset-mismatch"
        assert refused.value.problem.next_offset == 4


async def test_what_came_before_a_cut_counts(store: BlobStore) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield b"before "
        raise ConnectionResetError

    upload = await store.begin()
    with pytest.raises(ConnectionResetError):
        await store.append(upload, 0, cut(), LIMIT)
    assert await store.offset(upload) == 7
    await store.append(upload, 7, parts(b"after"), LIMIT)
    await store.commit(upload, digest_of(b"before after"))


async def test_an_upload_over_its_limit_is_refused_and_gone(
    store: BlobStore, tmp_path: Path
) -> None:
    upload = await store.begin()
    await store.append(upload, 0, parts(b"1234"), 4)
    with pytest.raises(Invalid):
        await store.append(upload, 4, parts(b"5"), 4)
    assert list((tmp_path / "uploads").iterdir()) == []


async def test_an_owner_begins_so_many_and_an_end_makes_room(tmp_path: Path) -> None:
    store = opened(tmp_path, Share(uploads=2))
    first, _ = await store.begin("shop"), await store.begin("shop_one")
    with pytest.raises(Unavailable) as refused:
        await store.begin("shop_two")
    assert refused.value.problem.slug == "rate-limited"
    assert len(store.open_uploads()) == 2, "nothing is left of the one that was refused"
    for other in ("blog", "one", "sho", ""):
        assert await store.begin(other), "others have room of their own"
    await store.discard(first)
    assert await store.begin("shop_two")


async def test_of_many_who_begin_at_once_in_two_processes_no_more_may_than_fit(
    tmp_path: Path,
) -> None:
    numbers = itertools.count(10**8)
    one, other = (
        BlobStore(tmp_path, new_id=lambda: f"u_{next(numbers)}", share=Share(uploads=8))
        for _ in range(2)
    )
    tries = (store.begin("shop") for _ in range(20) for store in (one, other))
    ends = await asyncio.gather(*tries, return_exceptions=True)
    begun = [end for end in ends if isinstance(end, str)]
    assert {type(end) for end in ends} <= {str, Unavailable}
    assert sorted(one.open_uploads()) == sorted(begun)
    assert 1 <= len(begun) <= 8


async def test_an_upload_that_nobody_went_on_with_makes_room_for_a_new_one(tmp_path: Path) -> None:
    store = opened(tmp_path, Share(uploads=2))
    left, busy = await store.begin("shop"), await store.begin("shop")
    aged = (tmp_path / "uploads" / left).stat().st_mtime - 1000
    os.utime(tmp_path / "uploads" / left, (aged, aged))
    new = await store.begin("shop")
    assert sorted(store.open_uploads()) == sorted([busy, new])
    with pytest.raises(Refused):
        await store.append(left, 0, parts(b"x"), LIMIT)


async def test_bytes_over_the_share_are_refused_while_they_come_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "FLUSH_BYTES", 1000)
    monkeypatch.setattr(blobs, "PIECE_BYTES", 500)
    store = opened(tmp_path, Share(size_bytes=2500))
    first, second = await store.begin("shop"), await store.begin("shop")
    await store.append(first, 0, parts(bytes(1000)), LIMIT)
    with pytest.raises(Unavailable) as refused:
        await store.append(second, 0, parts(*[bytes(500)] * 4), LIMIT)
    assert refused.value.problem.slug == "rate-limited"
    assert store.open_uploads() == [first]
    await store.append(first, 1000, parts(*[bytes(500)] * 8), LIMIT)  # alone it may


async def test_an_upload_that_is_given_up_ends_whoever_sends_to_it(
    store: BlobStore, tmp_path: Path
) -> None:
    sends = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(100)
            sends.set()
            await asyncio.sleep(0)

    upload = await store.begin()
    sender = asyncio.create_task(store.append(upload, 0, endless(), 10**12))
    await sends.wait()
    await store.discard(upload)
    with pytest.raises(Refused) as told:
        await sender
    assert told.value.problem.slug == "not-found"
    assert list((tmp_path / "uploads").iterdir()) == []


async def test_an_upload_that_another_process_gives_up_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "FLUSH_BYTES", 1000)
    monkeypatch.setattr(blobs, "PIECE_BYTES", 500)
    store, other = opened(tmp_path), opened(tmp_path)
    upload = await store.begin()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(500)
        await other.discard(upload)
        while True:
            yield bytes(500)

    with pytest.raises(Refused) as told:
        await store.append(upload, 0, endless(), 10**12)
    assert told.value.problem.slug == "not-found"


async def test_wrong_content_never_becomes_a_blob(store: BlobStore) -> None:
    upload = await store.begin()
    await store.append(upload, 0, parts(b"short"), LIMIT)
    with pytest.raises(IntegrityError):
        await store.commit(upload, digest_of(b"shorter"))
    assert await store.size(digest_of(b"short")) is None
    with pytest.raises(Refused):
        await store.offset(upload)


async def test_the_same_content_may_be_committed_at_once(store: BlobStore) -> None:
    uploads = [await store.begin() for _ in range(10)]
    for upload in uploads:
        await store.append(upload, 0, parts(b"same"), LIMIT)
    sizes = await asyncio.gather(*(store.commit(upload, digest_of(b"same")) for upload in uploads))
    assert set(sizes) == {4}
    assert store.read(digest_of(b"same"), 100) == b"same"


async def test_of_two_who_end_one_upload_the_second_finds_none(store: BlobStore) -> None:
    upload = await store.begin()
    await store.append(upload, 0, parts(b"once"), LIMIT)
    first, second = await asyncio.gather(
        store.commit(upload, digest_of(b"once")),
        store.commit(upload, digest_of(b"once")),
        return_exceptions=True,
    )
    assert first == 4
    assert isinstance(second, Refused)
    assert second.problem.slug == "not-found"


async def test_a_full_disk_gets_back_at_once_what_the_upload_took(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await store.begin()
    await store.append(upload, 0, parts(b"there "), LIMIT)
    real = os.pwritev

    def half_then_full(descriptor: int, chunks: list[bytes], offset: int) -> int:
        if offset > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, [chunks[0][:3]], offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", half_then_full)
        with pytest.raises(Unavailable) as refused:
            await store.append(upload, 6, parts(b"is no more"), LIMIT)
    assert refused.value.problem.slug == "storage-full"
    assert list((tmp_path / "uploads").iterdir()) == []
    with pytest.raises(Refused):
        await store.offset(upload)


async def test_a_disk_that_takes_little_at_a_time_gets_every_byte_once(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev

    def seven(descriptor: int, chunks: list[bytes], offset: int) -> int:
        joined = b"".join(chunks)
        return real(descriptor, [joined[:7]], offset)

    monkeypatch.setattr(os, "pwritev", seven)
    content = [b"one", b"", b"and a longer one", b"x" * 7, b"end"]
    upload = await store.begin()
    await store.append(upload, 0, parts(*content), LIMIT)
    assert await store.commit(upload, digest_of(b"".join(content))) == 29
    assert store.path(digest_of(b"".join(content))).read_bytes() == b"".join(content)


async def test_chunks_of_one_byte_are_kept_like_any_others(store: BlobStore) -> None:
    content = os.urandom(3 * blobs.CHUNKS_MAX + 1)
    upload = await store.begin()
    each = (content[at : at + 1] for at in range(len(content)))
    await store.append(upload, 0, parts(*each), LIMIT)
    assert await store.commit(upload, digest_of(content)) == len(content)


async def test_whoever_goes_on_at_the_end_takes_over_from_a_sender_that_hangs(
    store: BlobStore,
) -> None:
    hangs = asyncio.Event()

    async def dead() -> AsyncIterator[bytes]:
        yield bytes(blobs.PIECE_BYTES)
        yield bytes(blobs.PIECE_BYTES)  # the first one is written only while this one is here
        hangs.set()
        await asyncio.Event().wait()

    upload = await store.begin()
    cut = asyncio.create_task(store.append(upload, 0, dead(), 10 * blobs.PIECE_BYTES))
    await hangs.wait()
    end = 2 * blobs.PIECE_BYTES
    async with asyncio.timeout(25):
        while await store.offset(upload) < end:  # noqa: ASYNC110 - a thread writes it
            await asyncio.sleep(0.001)
    with pytest.raises(Refused):  # whoever does not, is no successor
        await store.append(upload, 1, parts(b"x"), LIMIT)

    await store.append(upload, end, parts(b"rest"), 10 * blobs.PIECE_BYTES)

    with pytest.raises(Refused) as told:
        await cut
    assert told.value.problem.slug == "offset-mismatch"
    await store.commit(upload, digest_of(bytes(2 * blobs.PIECE_BYTES) + b"rest"))


async def test_a_sender_that_falls_silent_is_given_up_and_what_came_counts(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield bytes(blobs.PIECE_BYTES)
        await asyncio.Event().wait()

    monkeypatch.setattr(blobs, "STALLED_SECONDS", 0.01)
    upload = await store.begin()
    with pytest.raises(Refused) as told:
        await store.append(upload, 0, silent(), 2 * blobs.PIECE_BYTES)
    assert told.value.problem.next_offset == blobs.PIECE_BYTES
    assert await store.offset(upload) == blobs.PIECE_BYTES


async def test_two_processes_go_on_with_each_others_uploads(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    upload = await one.begin()
    await one.append(upload, 0, parts(b"a"), LIMIT)
    await other.append(upload, 1, parts(b"b"), LIMIT)
    assert await one.offset(upload) == 2
    with pytest.raises(Refused) as refused:
        await one.append(upload, 1, parts(b"x"), LIMIT)
    assert refused.value.problem.next_offset == 2
    await one.append(upload, 2, parts(b"c"), LIMIT)
    await other.commit(upload, digest_of(b"abc"))
    for store in (one, other):
        assert await store.size(digest_of(b"abc")) == 3
        with pytest.raises(Refused):
            await store.append(upload, 3, parts(b"d"), LIMIT)


async def test_what_is_taken_away_is_old_and_its_space_comes_back(
    store: BlobStore, tmp_path: Path
) -> None:
    for data in (b"old", b"young"):
        upload = await store.begin()
        await store.append(upload, 0, parts(data), LIMIT)
        await store.commit(upload, digest_of(data))
    os.utime(store.path(digest_of(b"old")), (1000, 1000))
    found = [digest for shard in store.shards() for digest in store.settled(shard, 2000)]
    assert found == [digest_of(b"old")]

    both = [digest_of(b"old"), digest_of(b"young"), digest_of(b"never was")]
    assert store.take_away(both, before=2000) == 1

    assert await store.size(digest_of(b"old")) is None
    assert await store.size(digest_of(b"young")) == 5
    # Whoever ends here, by whatever, leaves it to the next.
    assert opened(tmp_path).empty_trash() == 3
    assert list((tmp_path / "trash").iterdir()) == []


async def test_what_was_committed_anew_is_not_taken_away(store: BlobStore) -> None:
    async def commit() -> None:
        upload = await store.begin()
        await store.append(upload, 0, parts(b"same"), LIMIT)
        await store.commit(upload, digest_of(b"same"))

    await commit()
    os.utime(store.path(digest_of(b"same")), (1000, 1000))
    [shard] = store.shards()
    found = store.settled(shard, 2000)
    await commit()
    assert store.take_away(found, before=2000) == 0


async def test_a_cancelled_part_is_written_or_not_but_never_half(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, writing = await store.begin(), asyncio.Event()
    loop, real = asyncio.get_running_loop(), os.pwritev

    def told(descriptor: int, chunks: list[bytes], offset: int) -> int:
        loop.call_soon_threadsafe(writing.set)
        return real(descriptor, chunks, offset)

    monkeypatch.setattr(os, "pwritev", told)
    task = asyncio.create_task(store.append(upload, 0, parts(b"whole"), LIMIT))
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.offset(upload) == 5
    await store.commit(upload, digest_of(b"whole"))


@pytest.mark.parametrize(
    "name", ["../router.db", "u_", "u_UPPERCASE", "u_12345678/..", "u_1234567\n"]
)
async def test_an_id_that_is_none_reaches_no_file(store: BlobStore, name: str) -> None:
    for call in (store.offset(name), store.discard(name), store.commit(name, digest_of(b""))):
        with pytest.raises(Refused):
            await call


async def test_only_abandoned_uploads_are_swept(store: BlobStore, tmp_path: Path) -> None:
    old, young = await store.begin(), await store.begin()
    now = (tmp_path / "uploads" / young).stat().st_mtime
    long_ago = now - ABANDONED_SECONDS - 1
    os.utime(tmp_path / "uploads" / old, (long_ago, long_ago))
    store.sweep(now)
    assert await store.offset(young) == 0
    with pytest.raises(Refused):
        await store.offset(old)


async def test_a_small_part_of_a_blob_is_read(store: BlobStore) -> None:
    upload = await store.begin()
    await store.append(upload, 0, parts(b"0123456789"), LIMIT)
    await store.commit(upload, digest_of(b"0123456789"))
    assert store.read(digest_of(b"0123456789"), 4) == b"0123"
    await store.delete(digest_of(b"0123456789"))
    await store.delete(digest_of(b"0123456789"))
    assert await store.size(digest_of(b"0123456789")) is None
