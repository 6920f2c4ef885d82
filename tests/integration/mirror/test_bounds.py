"""What other registries send is bounded before it is read: in bytes, and in time."""

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from pierhead.protocol.digest import digest_of
from pierhead.router.adapters.upstream import HttpUpstreams
from pierhead.router.domain.errors import UpstreamSilent
from pierhead.router.domain.upstream import Bound, Image
from pierhead.router.ports.upstreams import Upstream
from tests.acceptance.stage import eventually
from tests.integration.mirror.conftest import attempt, blob, login, manifest
from tests.integration.mirror.others import Strange
from tests.integration.router.stage import House

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ROOM = Bound(size_bytes=10**9, why="that there are")


@pytest.fixture
async def known(house: House, strange: Strange) -> Strange:
    """A registry that the owner allowed; a build has asked for the manifest of its image."""
    await login(house, strange.host, username=None, secret=None)
    web = await attempt(house, name="scout")
    assert (await web.get(manifest("me/base", "latest", strange.host))).status_code == 200
    return strange


def said(answer: httpx.Response) -> tuple[str, str]:
    (error,) = answer.json()["errors"]
    assert error["detail"]["hint"]
    return error["code"], error["message"]


async def require_nothing_left(house: House) -> None:
    async def is_cleared() -> bool:  # a moment after whoever asked has heard of the end
        return not list((house.data / "uploads").iterdir())

    await eventually(is_cleared, within=60)
    assert not list((house.data / "blobs" / "sha256").glob("*/*"))


@pytest.mark.parametrize("every", [0.0, 0.001])
async def test_a_blob_without_an_end_ends_with_what_its_manifest_says(
    house: House, known: Strange, every: float
) -> None:
    part = known.images["me/base"].config
    known.endless, known.every = True, every
    answer = await (await attempt(house)).get(blob("me/base", digest_of(part), known.host))
    what = f"{known.host}/me/base@{digest_of(part)}"
    expected = (
        f"{known.host} sends more of {what} than the {len(part)} bytes that its manifest says"
    )
    assert said(answer) == ("DIGEST_INVALID", expected)
    assert len([one for one in known.asked("GET", "/blobs/") if one]) == 1
    await require_nothing_left(house)


async def test_a_blob_that_is_said_to_be_larger_is_not_begun(house: House, known: Strange) -> None:
    part = known.images["me/base"].layer
    known.spoilt[digest_of(part)] = part + b"!"
    answer = await (await attempt(house)).get(blob("me/base", digest_of(part), known.host))
    code, message = said(answer)
    assert code == "DIGEST_INVALID"
    assert message.endswith(f"than the {len(part)} bytes that its manifest says")
    await require_nothing_left(house)


async def test_a_blob_that_no_manifest_named_has_a_bound_as_well(
    house: House, known: Strange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pierhead.router.domain.upstream.NAMELESS_BYTES_MAX", 5000)
    known.images["me/other"] = known.images["me/base"]
    digest = digest_of(known.images["me/other"].layer)
    web = await attempt(house)
    for known.endless in (False, True):
        code, message = said(await web.get(blob("me/other", digest, known.host)))
        assert code == "DIGEST_INVALID"
        assert message.endswith("than the 5000 bytes that are taken of what no manifest named")
    await require_nothing_left(house)


async def test_what_comes_packed_though_nobody_asked_for_that_is_not_unpacked(
    house: House, known: Strange
) -> None:
    layer = known.images["me/base"].layer
    known.spoilt[digest_of(layer)] = gzip.compress(layer)
    known.packed = True
    web = await attempt(house)
    with pytest.raises(httpx.RemoteProtocolError):
        await web.get(blob("me/base", digest_of(layer), known.host))
    await require_nothing_left(house)


async def test_a_blob_that_comes_too_slowly_is_given_up(strange: Strange) -> None:
    strange.endless, strange.every = True, 0.01
    digest = digest_of(strange.images["me/base"].layer)
    upstreams = HttpUpstreams(patience=lambda arrived: 0.5 + arrived / 10**6)
    async with upstreams.blob(plainly(strange.host), "me/base", digest, ROOM) as found:
        with pytest.raises(UpstreamSilent, match="too slowly: ") as refused:
            assert not [len(piece) async for piece in found.chunks if len(piece) > 1]
    assert str(refused.value).startswith(f"{strange.host} sends ")


@contextlib.asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[str]:
    """Answer every connection in one way, and give where."""
    open_ = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(asyncio.current_task())
        with contextlib.suppress(OSError):
            await answer(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{running.sockets[0].getsockname()[1]}"
    finally:
        running.close()
        await asyncio.gather(*filter(None, open_))


def plainly(host: str) -> Upstream:
    return Upstream(host=host, plain_http=True, allowed=frozenset({host}))


async def silently(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other side gives up


async def in_drops(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    await reader.readuntil(b"\r\n\r\n")
    gone = asyncio.create_task(reader.read())
    while not gone.done():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)
    await gone


async def hastily(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    return


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (silently, "did not answer within 1 s"),
        (in_drops, "did not answer within 3 s"),
        (hastily, "Server disconnected without sending a response"),
    ],
)
async def test_whoever_does_not_answer_is_told_of_in_words(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, why: str
) -> None:
    monkeypatch.setattr("pierhead.router.adapters.upstream.SILENT_SECONDS", 1.0)
    monkeypatch.setattr("pierhead.router.adapters.upstream.CONNECT_SECONDS", 2.0)
    async with server(answer) as host:
        image = Image(host=host, name="me/base", reference="latest")
        with pytest.raises(UpstreamSilent, match=why) as refused:
            await HttpUpstreams().manifest(plainly(host), image)
    assert "Error" not in str(refused.value)
    assert "Timeout" not in str(refused.value)
