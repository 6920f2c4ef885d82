"""The registry that one build sees: whom it lets in, what it passes on, what it makes of cuts."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from pierhead.protocol.client.trust import Trust
from pierhead.protocol.errors import IntegrityError, Unavailable
from pierhead.protocol.problem import problem
from pierhead.runner.adapters.bases import HttpBases
from pierhead.runner.adapters.network import close_network, network_of, open_network
from pierhead.runner.adapters.relay import CONNECTIONS_MAX, Relay, listen_in
from pierhead.runner.domain.bases import BaseRefusal, authorization
from pierhead.runner.ports import BaseAnswer, BaseAsk
from pierhead.runner.testing import FakeBases
from tests.integration.backend.conftest import call

LAYER = bytes(range(256)) * 4096


async def pieces(*parts: bytes | Exception) -> AsyncIterator[bytes]:
    for part in parts:
        if isinstance(part, Exception):
            raise part
        yield part


def layer(_: BaseAsk) -> BaseAnswer:
    headers = {"content-length": str(len(LAYER)), "content-type": "application/octet-stream"}
    return BaseAnswer(status=200, headers=headers, chunks=pieces(LAYER[:1000], LAYER[1000:]))


@asynccontextmanager
async def relayed(
    answers: Callable[[BaseAsk], BaseAnswer] = layer, *hosts: str
) -> AsyncIterator[tuple[Relay, FakeBases, httpx.AsyncClient]]:
    given, log = FakeBases(says=answers), bytearray()
    relay = Relay(given, hosts or ("docker.io", "r.example:5000"), log.extend)
    async with relay.listening(None):
        headers = {"Authorization": authorization(relay.password)}
        async with httpx.AsyncClient(
            base_url=f"http://{relay.address}", headers=headers, trust_env=False, timeout=60
        ) as http:
            yield relay, given, http
        assert relay.notes == [line.removeprefix("note: ") for line in log.decode().splitlines()]


async def test_only_the_password_of_this_build_lets_in() -> None:
    async with relayed() as (relay, given, http):
        for wrong in ("", "Basic cGllcmhlYWQ6", "Bearer x", authorization(relay.password + "x")):
            answer = await http.get("/v2/", headers={"Authorization": wrong})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Basic")
            path = "/v2/r0/library/busybox/manifests/latest"
            assert (await http.get(path, headers={"Authorization": wrong})).status_code == 401
        assert (await http.get("/v2/")).status_code == 200
        assert given.asked == []


async def test_it_asks_for_what_the_place_in_the_settings_stands_for() -> None:
    async with relayed() as (_, given, http):
        answer = await http.get("/v2/r1/me/app/blobs/sha256:abc")
        assert answer.content == LAYER
        assert answer.headers["content-type"] == "application/octet-stream"
        head = await http.head("/v2/r0/library/busybox/manifests/latest")
        assert (head.status_code, head.content) == (200, b"")
        assert [(one.method, one.host, one.name, one.kind) for one in given.asked] == [
            ("GET", "r.example:5000", "me/app", "blobs"),
            ("HEAD", "docker.io", "library/busybox", "manifests"),
        ]


@pytest.mark.parametrize(
    "path",
    [
        "/v2/r2/x/manifests/1", "/v2/rx/x/manifests/1", "/v2/r0/X/manifests/1", "/api/meta",
        "/v2/r0/x/tags/list", "/v2/r0/x/blobs/uploads/", "/v2/r0/x/manifests/1?ns=evil",
    ],
)  # fmt: skip
async def test_nothing_else_is_there(path: str) -> None:
    async with relayed() as (_, given, http):
        assert (await http.get(path)).status_code == 404
        assert given.asked == []


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v2/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /v2/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"",
    ],
)
async def test_whoever_does_not_speak_like_buildah_is_left_alone(sent: bytes) -> None:
    async with relayed() as (relay, given, http):
        port = int(relay.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert given.asked == []
        assert (await http.get("/v2/")).status_code == 200


async def test_whoever_tries_tls_hears_at_once_that_there_is_none() -> None:
    async with relayed() as (relay, _, _), asyncio.timeout(40):
        port = int(relay.address.rpartition(":")[2])
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())


async def test_a_refusal_is_kept_for_people_and_buildah_does_not_ask_again() -> None:
    said = BaseRefusal(image="docker.io/x", message="docker.io gives no more", hint="wait")

    async with relayed(lambda _: BaseAnswer(status=429, headers={}, refusal=said)) as found:
        relay, _, http = found
        assert (await http.get("/v2/r0/x/manifests/1")).status_code == 403
        assert relay.refusal == said
    async with relayed(lambda _: BaseAnswer(status=404, headers={}, refusal=said)) as found:
        assert (await found[2].get("/v2/r0/x/manifests/1")).status_code == 404


async def test_what_breaks_off_is_not_finished() -> None:
    away = Unavailable(problem("dependency-unavailable", "the control plane does not answer"))

    def broken(_: BaseAsk) -> BaseAnswer:
        headers = {"content-length": str(len(LAYER))}
        return BaseAnswer(status=200, headers=headers, chunks=pieces(LAYER[:99], away))

    async with relayed(broken) as (relay, _, http):
        with pytest.raises(httpx.HTTPError):
            await http.get("/v2/r0/x/blobs/sha256:abc")
        assert relay.refusal is not None
        assert relay.refusal.message == "the control plane does not answer"


async def test_what_was_cut_for_a_lie_is_not_asked_for_again() -> None:
    lie = IntegrityError(problem("digest-mismatch", "r.example sent other bytes", hint="ask it"))

    def lying(_: BaseAsk) -> BaseAnswer:
        headers = {"content-length": str(len(LAYER))}
        return BaseAnswer(status=200, headers=headers, chunks=pieces(LAYER[:99], lie))

    async with relayed(lying) as (relay, given, http):
        with pytest.raises(httpx.HTTPError):
            await http.get("/v2/r0/x/blobs/sha256:abc")
        for _ in range(2):
            assert (await http.get("/v2/r0/x/blobs/sha256:abc")).status_code == 403
        assert relay.refusal is not None
        assert relay.refusal.hint == "ask it"
        assert len(given.asked) == 1
        with pytest.raises(httpx.HTTPError):
            await http.get("/v2/r0/x/blobs/sha256:def")  # that was not asked for yet


async def test_what_its_registry_did_not_confirm_is_said_once() -> None:
    def stale(_: BaseAsk) -> BaseAnswer:
        headers = {"content-length": "2"}
        return BaseAnswer(status=200, headers=headers, chunks=pieces(b"{}"), stale_since="Monday")

    async with relayed(stale) as (relay, _, http):
        for _ in range(2):
            await http.get("/v2/r0/x/manifests/1")
        assert relay.notes == ["docker.io does not answer: docker.io/x:1 is what it was at Monday"]


async def test_more_connections_than_buildah_needs_are_not_served() -> None:
    async with relayed() as (relay, _, http):
        port = int(relay.address.rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        with pytest.raises(httpx.HTTPError):
            await http.get("/v2/")
        for _, writer in idle:
            writer.close()


async def test_it_listens_in_the_network_of_its_build_alone() -> None:
    network = network_of(f"relay{os.getpid()}.1")  # others may run the same tests
    await open_network(network)
    try:
        relay = Relay(FakeBases(says=layer), ("docker.io",), lambda _: None)
        async with relay.listening(network.path):
            inside = await call("nsenter", f"--net={network.path}", "ss", "-Hltn")
            assert relay.address in inside
            # Somebody else may have the same number on this machine.
            with suppress(OSError, httpx.HTTPError):
                headers = {"Authorization": authorization(relay.password)}
                async with httpx.AsyncClient(headers=headers, trust_env=False) as http:
                    answer = await http.get(f"http://{relay.address}/v2/")
                    assert answer.status_code != 200
        with pytest.raises(FileNotFoundError):
            listen_in(Path("/nowhere"))
    finally:
        await close_network(network)


async def cutting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a router whose connection is cut after 300,000 bytes, each time."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    start = int(head.split("bytes=")[1].split("-")[0]) if "bytes=" in head else 0
    status = "206 Partial Content" if start else "200 OK"
    rest = LAYER[start:]
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(rest)}\r\n\r\n".encode())
    writer.write(rest[:300_000])
    await writer.drain()
    writer.close()


async def test_a_cut_on_the_way_from_the_router_is_gone_over() -> None:
    server = await asyncio.start_server(cutting, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bases = HttpBases(f"http://127.0.0.1:{port}", "phb_token", Trust(None))
    wanted = BaseAsk(method="GET", host="r.io", name="x", kind="blobs", reference="sha256:abc")
    async with bases.ask(wanted) as answer:
        assert b"".join([chunk async for chunk in answer.chunks]) == LAYER
    await bases.close()
    server.close()
