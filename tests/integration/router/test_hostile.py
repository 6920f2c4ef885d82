"""Requests that nobody means well, to every operation that the API describes of itself.

The description says which documents, parameters and headers there are; each gets what it should not
get, one thing at a time, with a token that opens the operation. Whatever it is, the answer is a
problem document, soon, and the router goes on.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pierhead.protocol.plan import Plan, Submit
from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE
from pierhead.router.http.requests import EXCEPTION_HANDLERS
from pierhead.server.bounded import HEAD_BYTES_MAX, Patience
from pierhead.server.connection import Connection
from tests.integration.router.matrix import Scene, set_scene
from tests.integration.router.stage import House
from tests.loop_time import loop_time

HOLDERS: Final = {
    "anybody": "none",
    "submitter": "owner",
    "owner": "owner",
    "runner": "runner",
    "attempt": "attempt",
}
ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    2**64,
    1e308,
    "",
    "\x00\n\x7f",
    "\udcff\ud800",
    "../../etc/passwd",
    "x" * 5000,
    [],
    [[[[[[[[[[]]]]]]]]]],
    {},
    {"x": {"": None}},
)
# By hand, since there is no way to write them as JSON.
NOT_JSON: Final = (
    b"",
    b"nonsense",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"name":"\\ud800"}',
    b'"' + b"x" * (1024 * 1024 + 1) + b'"',
)
ODD_TEXT: Final = ("", "-1", "9" * 40, "²", "\x00", "%00", "../..", "x" * 5000, "é" * 50, "null")
# What it does would end what the others need, so it comes last; signals are held.
LAST: Final = ("/cancel", "/release", "/result", "/run-here", "/rerun")
HELD: Final = ("/signals", "/events")


async def operations(scene: Scene) -> list[tuple[str, str, dict[str, Any]]]:
    """Return every operation of the API's own description: method, path, what it takes."""
    described = (await scene.house.nobody.get("/api/openapi.json")).json()
    found = [
        (method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(found) > 30
    return sorted(found, key=lambda one: one[1].endswith(LAST))


def token_for(scene: Scene, operation: dict[str, Any]) -> str | None:
    return scene.tokens[HOLDERS[operation["x-pierhead-who"]]]


def filled(scene: Scene, path: str) -> str:
    things = {
        "build_id": scene.made.build_id,
        "project": "web",
        "token_id": "t_none",
        "runner": "nobody",
    }
    for name, thing in things.items():
        path = path.replace("{" + name + "}", thing)
    return path


def as_served(path: str) -> str:
    return path.replace("{project}", "{project:path}")


def takes_json(operation: dict[str, Any]) -> bool:
    return "application/json" in operation.get("requestBody", {}).get("content", {})


def one_thing_odd(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the document with one value replaced, at its top and one level below."""
    for name, value in document.items():
        yield from ({**document, name: odd} for odd in ODD)
        if isinstance(value, dict):
            yield from ({**document, name: inner} for inner in one_thing_odd(value))
    yield {**document, "nobody_knows_this": ODD}


def complaint(answered: httpx.Response) -> str:
    """Return what is wrong with an answer; empty when it is in order."""
    if answered.is_success or answered.status_code == 304:
        return ""
    kind = answered.headers.get("content-type", "")
    if answered.status_code >= 500 or kind != PROBLEM_MEDIA_TYPE:
        return f"{answered.status_code} {kind} {answered.text[:200]}"
    if "Traceback" in answered.text or len(answered.content) > 8192:
        return f"{len(answered.content)} bytes: {answered.text[:200]}"
    return ""


async def test_a_document_with_one_odd_value_is_refused_or_taken_and_nothing_breaks(
    house: House,
) -> None:
    scene, wrong, asked = await set_scene(house, "leased"), [], 0
    for method, path, operation in await operations(scene):
        if not takes_json(operation):
            continue
        who = HOLDERS[operation["x-pierhead-who"]]
        base = json.loads(scene.body((method, as_served(path)), who) or b"{}")
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        document = {**dict.fromkeys(await fields(scene, schema)), **base}
        for odd in one_thing_odd({k: v for k, v in document.items() if k in base or v is None}):
            kept = {k: v for k, v in odd.items() if v is not None or k in base}
            body = json.dumps(kept).encode()
            answered = await scene.send(
                method, filled(scene, path), token_for(scene, operation), body
            )
            asked += 1
            if said := complaint(answered):
                wrong.append(f"{method} {path} {body[:200]!r}: {said}")
    assert not wrong, "\n".join(wrong)
    assert asked > 500


async def fields(scene: Scene, schema: dict[str, Any]) -> list[str]:
    described = (await scene.house.nobody.get("/api/openapi.json")).json()
    name = schema["$ref"].rpartition("/")[2]
    return list(described["components"]["schemas"][name].get("properties", {}))


async def test_what_is_no_document_is_refused_by_every_operation_that_takes_one(
    house: House,
) -> None:
    scene, wrong = await set_scene(house, "leased"), []
    for method, path, operation in await operations(scene):
        if not takes_json(operation):
            continue
        for body in NOT_JSON:
            for kind in ("application/json", "text/plain", ""):
                answered = await scene.send(
                    method,
                    filled(scene, path),
                    token_for(scene, operation),
                    body,
                    {"Content-Type": kind},
                )
                if answered.status_code not in {400, 413} or complaint(answered):
                    wrong.append(f"{method} {path} {body[:20]!r}: {answered.status_code}")
    assert not wrong, "\n".join(wrong)


async def test_odd_parameters_and_headers_are_refused_or_taken_and_nothing_breaks(
    house: House,
) -> None:
    scene, wrong = await set_scene(house, "leased"), []
    for method, path, operation in await operations(scene):
        if path.endswith((*HELD, *LAST)):
            continue
        token = token_for(scene, operation)
        for parameter in operation["parameters"]:
            for odd in ODD_TEXT:
                name, where, place = parameter["name"], filled(scene, path), parameter["in"]
                headers: dict[str, str] = {}
                query: dict[str, str] = {}
                if place == "header":
                    if not odd.isprintable() or not odd.isascii():
                        continue  # no client can send it
                    headers[name] = odd
                elif place == "query":
                    query[name] = odd
                else:
                    where = path.replace("{" + name + "}", httpx.QueryParams(x=odd)["x"])
                    where = filled(scene, where.replace("\x00", "%00"))
                answered = await scene.send(method, where, token, b"", headers, query)
                if said := complaint(answered):
                    wrong.append(f"{method} {path} {place} {name}={odd[:20]!r}: {said}")
    assert not wrong, "\n".join(wrong)


async def test_twenty_submits_with_one_key_at_once_are_one_build(house: House) -> None:
    context = await house.upload("web")
    wanted = Submit(project="web", plan=Plan(), context=context, key="k", if_nobody="wait")

    builds = await asyncio.gather(*(house.owner.submit(wanted) for _ in range(20)))

    assert len({build.id for build in builds}) == 1
    assert len((await house.owner.builds()).builds) == 1


# The connection itself, as it is served.


class Hurried(Connection):
    """A connection that gives a head little time."""

    head_seconds = 0.2


class Served:
    """An application behind the connections of the control plane, with little patience.

    No time is over until a request has reached it, or the test says so: nobody is too slow then
    but who is meant to be.
    """

    async def __aenter__(self) -> "Served":
        app = Starlette(
            routes=[
                Route("/", self._read, methods=["GET", "POST"]),
                Route("/held", self._held, methods=["POST"]),
                Route("/stuck", self._stuck, methods=["POST"]),
            ],
            middleware=[Middleware(Patience, seconds=0.2)],
            exception_handlers=EXCEPTION_HANDLERS,
        )
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        state = uvicorn.server.ServerState()

        self._opened = contextlib.ExitStack()
        loop = asyncio.get_running_loop()
        self.time = self._opened.enter_context(loop_time())
        self._server = await loop.create_server(
            lambda: Hurried(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        self._opened.callback(self._server.close)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.time.stop()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._opened.close()

    async def _read(self, request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def _held(self, _: Request) -> Response:
        self.time.go_on()
        await asyncio.sleep(3 * Hurried.head_seconds)
        return PlainTextResponse("at last")

    async def _stuck(self, request: Request) -> Response:
        self.time.go_on()
        return await self._read(request)

    async def say(self, *pieces: bytes) -> bytes:
        """Send pieces, and return all that comes back until the other side has enough."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


HEAD: Final = b"POST / HTTP/1.1\r\nHost: here\r\n"


@pytest.mark.parametrize("piece", [HEAD_BYTES_MAX * 4, 1000], ids=["at-once", "in-pieces"])
async def test_a_head_without_an_end_is_not_read_for_ever(piece: int) -> None:
    async with Served() as served:
        long = b"x-long: " + b"y" * (HEAD_BYTES_MAX * 4) + b"\r\n\r\n"
        pieces = [long[at : at + piece] for at in range(0, len(long), piece)]
        answered = await served.say(HEAD, *pieces)
    assert answered == b"" or answered.startswith(b"HTTP/1.1 400")


async def test_who_comes_and_asks_nothing_is_not_waited_for() -> None:
    async with Served() as served:
        served.time.go_on()
        assert await served.say() == b""


async def test_the_end_of_a_body_is_no_head_however_long_it_is() -> None:
    body = bytes(4 * HEAD_BYTES_MAX)
    async with Served() as served:
        head = HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        answered = await served.say(head + body)
    assert answered.startswith(b"HTTP/1.1 200")


async def test_many_headers_are_too_many_too() -> None:
    many = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 100) for number in range(2000))
    async with Served() as served:
        answered = await served.say(HEAD + many + b"\r\n")
    assert answered == b"" or answered.startswith(b"HTTP/1.1 400")


async def test_whoever_does_not_end_a_head_is_left() -> None:
    async with Served() as served:
        served.time.go_on()
        assert await served.say(HEAD) == b""


async def test_whoever_stops_in_a_body_is_told_so() -> None:
    async with Served() as served:
        head = HEAD.replace(b" / ", b" /stuck ") + b"Content-Length: 10\r\n"
        answered = await served.say(head + b"Connection: close\r\n\r\nabc")
    assert answered.startswith(b"HTTP/1.1 400")
    assert b"nothing of the body came" in answered


async def test_a_large_body_is_not_taken_for_a_head_however_it_is_cut() -> None:
    size = HEAD_BYTES_MAX * 3
    ask = HEAD + b"Content-Length: %d\r\n\r\n" % size
    last = HEAD + b"Content-Length: 1\r\nConnection: close\r\n\r\nx"
    async with Served() as served:
        whole = await served.say(ask + b"x" * size, last)
        cut = await served.say(ask, b"x" * (size // 2), b"x" * (size // 2), last)
    for answered in (whole, cut):
        assert answered.count(b"HTTP/1.1 200") == 2
        assert b"%d" % size in answered


async def test_a_held_answer_is_waited_for_however_long_it_takes() -> None:
    async with Served() as served:
        answered = await served.say(HEAD.replace(b" / ", b" /held ") + b"Connection: close\r\n\r\n")
    assert answered.endswith(b"at last")


async def test_a_request_that_is_in_order_is_answered() -> None:
    async with Served() as served:
        rest = b"Content-Length: 3\r\nConnection: close\r\n\r\nabc"
        answered = await served.say(HEAD + b"x-long: " + b"y" * 8000 + b"\r\n" + rest)
    assert answered.startswith(b"HTTP/1.1 200")
    assert answered.endswith(b"3")


async def test_a_long_body_is_not_taken_for_a_head_and_a_pause_between_requests_is_no_fault() -> (
    None
):
    length = HEAD_BYTES_MAX * 4
    long = HEAD + b"Content-Length: %d\r\n\r\n" % length + b"z" * length
    async with Served() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        statuses = []
        for _ in range(3):
            writer.write(long)
            head = await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(str(length))) == str(length).encode()
            statuses.append(head.split()[1])
            served.time.go_on()
            await asyncio.sleep(3 * Hurried.head_seconds)
            served.time.stop()
        writer.close()
    assert statuses == [b"200"] * 3
