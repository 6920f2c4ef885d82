"""An application in this process answers as one behind a socket would."""

import asyncio
from typing import Any

import httpx
import pytest

from pierhead.protocol.client.inprocess import InProcess


def client(application: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=InProcess(application), base_url="http://here")


async def start(send: Any, status: int = 200) -> None:
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def body(send: Any, data: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def test_a_request_arrives_whole_and_its_answer_comes_back() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        asked = await receive()
        await start(send, 201)
        said = f"{scope['method']} {scope['path']}?{scope['query_string'].decode()} ".encode()
        await body(send, said + asked["body"], more=True)
        await body(send, b"!")

    async with client(echo) as http:
        answer = await http.post("/a b", params={"q": "1"}, content=b"hello")

    assert (answer.status_code, answer.headers["content-type"]) == (201, "text/plain")
    assert answer.content == b"POST /a b?q=1 hello!"


async def test_an_answer_is_read_while_it_is_written_and_the_writer_waits_for_the_reader() -> None:
    written, go_on = 0, asyncio.Event()

    async def endless(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal written
        await start(send)
        for number in range(100):
            await body(send, b"%d," % number, more=True)
            written += 1
        await go_on.wait()
        await body(send, b"end")

    async with client(endless) as http, http.stream("GET", "/") as answer:
        parts = answer.aiter_raw()
        assert await anext(parts) == b"0,"
        await asyncio.sleep(0)
        assert written < 10
        seen = [await anext(parts) for _ in range(99)]
        assert seen[-1] == b"99,"
        go_on.set()
        assert [part async for part in parts] == [b"end"]


async def test_an_application_whose_reader_left_is_told_and_ended() -> None:
    told = asyncio.Event()

    async def waiting(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await start(send)
        await body(send, b"first", more=True)
        try:
            await asyncio.Event().wait()
        finally:
            told.set()

    async with client(waiting) as http, http.stream("GET", "/") as answer:
        assert await anext(answer.aiter_raw()) == b"first"

    assert told.is_set()


async def test_a_reader_that_gives_up_before_the_answer_ends_the_application() -> None:
    ended = asyncio.Event()

    async def silent(_scope: Any, _receive: Any, _send: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with client(silent) as http:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await http.get("/")

    assert ended.is_set()


async def test_an_application_that_breaks_is_a_connection_that_broke() -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("a bug")

    async def mute(_scope: Any, _receive: Any, _send: Any) -> None:
        return

    for application in (broken, mute):
        async with client(application) as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get("/")
