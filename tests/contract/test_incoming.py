"""What every place for tars on their way in does. There is one, on the disk."""

import asyncio
import gzip
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard

from pierhead.protocol.errors import Invalid
from pierhead.router.adapters import incoming as adapter
from pierhead.router.adapters.incoming import DiskIncoming
from pierhead.router.ports.contexts import Incoming


def tar(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return packed.getvalue()


PLAIN = tar(Dockerfile=b"FROM scratch\n", big=bytes(range(256)) * 8192)
HALF = len(PLAIN) // 2
FORMS = {
    "plain": PLAIN,
    "gzip": gzip.compress(PLAIN, 1),
    "gzip in two": gzip.compress(PLAIN[:HALF], 1) + gzip.compress(PLAIN[HALF:], 1),
    "zstd": zstandard.compress(PLAIN, 1),
    "zstd in two": zstandard.compress(PLAIN[:HALF], 1) + zstandard.compress(PLAIN[HALF:], 1),
}
CHECKED = zstandard.ZstdCompressor(1, write_checksum=True).compress(PLAIN)
DAMAGED = {
    "gzip, cut": FORMS["gzip"][:-20],
    "gzip, changed": FORMS["gzip"][:2000] + b"!!!" + FORMS["gzip"][2003:],
    "zstd, cut": FORMS["zstd"][:-20],
    "zstd, cut between": FORMS["zstd in two"][:-1],
    "zstd, changed": CHECKED[:100] + b"!!!" + CHECKED[103:],
    "zstd, and more": FORMS["zstd"] + b"what is no frame",
}


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.fixture(params=["disk"])
def incoming(request: pytest.FixtureRequest, tmp_path: Path) -> Incoming:
    del request
    return DiskIncoming(tmp_path / "incoming")


@pytest.fixture(autouse=True)
async def nothing_left(tmp_path: Path) -> AsyncIterator[None]:
    """However it ended: there is nothing in the folder that has a name."""
    yield
    assert list((tmp_path / "incoming").iterdir()) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1000, 2**20])
async def test_a_tar_is_plain_whatever_compressed_it_and_is_read_twice(
    incoming: Incoming, form: str, size: int
) -> None:
    async with incoming.tar(pieces(FORMS[form], size)) as found:
        assert found.read() == PLAIN
        found.seek(0)
        with tarfile.open(fileobj=found) as opened:
            assert opened.getnames() == ["Dockerfile", "big"]


async def test_a_body_without_a_byte_is_an_empty_file(incoming: Incoming) -> None:
    async with incoming.tar(pieces(b"")) as found:
        assert found.read() == b""


@pytest.mark.parametrize("how", DAMAGED)
async def test_what_is_damaged_is_refused_before_anybody_reads_it(
    incoming: Incoming, how: str
) -> None:
    with pytest.raises(Invalid) as refused:
        async with incoming.tar(pieces(DAMAGED[how])):
            pytest.fail("it was given")
    assert refused.value.problem.slug == "invalid-document"


@pytest.mark.parametrize("form", ["plain", "gzip", "zstd"])
async def test_what_is_too_large_is_refused_as_it_comes_and_as_it_unpacks(
    incoming: Incoming, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "_TAR_BYTES_MAX", len(PLAIN) - 1)

    with pytest.raises(Invalid) as refused:
        async with incoming.tar(pieces(FORMS[form])):
            pytest.fail("it was given")
    assert refused.value.problem.slug == "context-too-large"
    assert refused.value.problem.hint


async def test_two_at_a_time_are_not_mixed(incoming: Incoming) -> None:
    other = tar(other=b"x")
    async with incoming.tar(pieces(PLAIN, 1000)) as first, incoming.tar(pieces(other)) as second:
        assert (first.read(), second.read()) == (PLAIN, other)


async def test_whoever_breaks_off_is_told_so_and_a_cancel_ends_it(incoming: Incoming) -> None:
    begun = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield PLAIN[:1000]
        begun.set()
        await asyncio.Event().wait()

    async def broken() -> AsyncIterator[bytes]:
        yield PLAIN[:1000]
        raise ConnectionError("gone")

    async def take(body: AsyncIterator[bytes]) -> None:
        async with incoming.tar(body):
            pytest.fail("it was given")

    with pytest.raises(ConnectionError):
        await take(broken())
    waiting = asyncio.create_task(take(stuck()))
    await begun.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
