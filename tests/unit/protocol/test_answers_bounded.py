"""Whoever answers in the place of a control plane can send neither too much nor for ever."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.failure import reason
from pierhead.protocol.client.http import ANSWER_BYTES_MAX, REFUSAL_BYTES_MAX, whole
from pierhead.protocol.client.trust import CA_BYTES_MAX, shown_to
from pierhead.protocol.errors import Unavailable


class Endless(httpx.AsyncByteStream):
    """A body of blanks that goes on until nobody reads it any more."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self.closed:
            self.sent += 65536
            yield b" " * 65536
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("status", "limit"),
    [(200, ANSWER_BYTES_MAX), (404, REFUSAL_BYTES_MAX), (503, REFUSAL_BYTES_MAX)],
)
async def test_an_answer_without_an_end_is_cut_and_told_of(status: int, limit: int) -> None:
    body = Endless()
    transport = httpx.MockTransport(lambda _: httpx.Response(status, stream=body))
    async with RouterClient("http://127.0.0.1:7443", token="t", transport=transport) as client:
        with pytest.raises(Unavailable, match=f"127.0.0.1:7443 answers with more than {limit} b"):
            await client.meta()
    assert body.closed
    assert body.sent <= limit + 65536


async def test_an_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pierhead.protocol.client.http.ANSWER_SECONDS_MAX", 0.0)
    body = Endless()
    answer = httpx.Response(200, stream=body, request=httpx.Request("GET", "http://a.example/"))
    with pytest.raises(Unavailable, match="is not done with an answer after 0 s"):
        await whole(answer, 10**9)
    assert body.closed


async def test_an_authority_that_is_not_proven_yet_is_read_as_far_as_one_can_be_long() -> None:
    body = Endless()
    shown = httpx.Response(200, stream=body, headers={"Content-Encoding": "gzip"})
    transport = httpx.MockTransport(lambda _: shown)
    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(ValueError, match="too large"):
            await shown_to(http, "http://a.example")
    assert body.sent <= CA_BYTES_MAX + 65536


@pytest.mark.parametrize(
    "kind",
    [
        httpx.ConnectTimeout, httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout,
        httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.CloseError,
        httpx.RemoteProtocolError, httpx.ProxyError, httpx.DecodingError,
    ],
)  # fmt: skip
def test_people_see_no_name_of_a_class(kind: type[httpx.RequestError]) -> None:
    assert kind.__name__ not in reason(kind(""))
    assert reason(kind("the system's word")) == "the system's word"
