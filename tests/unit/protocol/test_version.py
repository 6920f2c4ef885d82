"""Two sides that were released apart find a version that both speak, or say which is older."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.codec import to_wire
from pierhead.protocol.errors import ProtocolMismatch
from pierhead.protocol.meta import Meta
from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE, problem
from pierhead.protocol.version import PROTOCOL, PROTOCOL_HEADER, SPOKEN, Versions

versions = st.builds(
    lambda low, more: Versions(low, low + more), st.integers(1, 9), st.integers(0, 4)
)


@given(versions, versions)
def test_the_common_version_is_the_newest_that_both_speak(one: Versions, other: Versions) -> None:
    both = [version for version in range(1, 20) if version in one and version in other]

    assert one.common(other) == other.common(one) == (max(both) if both else None)


def test_the_newest_version_and_two_before_it_are_spoken() -> None:
    assert SPOKEN.high == PROTOCOL
    assert SPOKEN.high - SPOKEN.low <= 2


def server(spoken: Versions, asked: list[int]) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        version = int(request.headers[PROTOCOL_HEADER])
        asked.append(version)
        if version in spoken:
            return httpx.Response(200, content=to_wire(Meta(low=1, high=1, release="1")))
        found = problem("version-unsupported", "no", low=spoken.low, high=spoken.high)
        kind = {"Content-Type": PROBLEM_MEDIA_TYPE}
        return httpx.Response(found.status, content=to_wire(found), headers=kind)

    return httpx.MockTransport(answer)


async def ask(ours: Versions, theirs: Versions, times: int = 1) -> list[int]:
    asked: list[int] = []
    transport = server(theirs, asked)
    async with RouterClient("http://127.0.0.1:1", transport=transport, spoken=ours) as client:
        for _ in range(times):
            await client.meta()
    return asked


async def test_a_newer_client_goes_on_in_the_older_servers_version() -> None:
    assert await ask(Versions(1, 3), Versions(1, 1), times=3) == [3, 1, 1, 1]


async def test_an_older_client_is_understood_as_it_is() -> None:
    assert await ask(Versions(1, 1), Versions(1, 3)) == [1]


@pytest.mark.parametrize(
    "theirs", [Versions(1, 1), Versions(7, 9)], ids=["an older server", "a newer server"]
)
async def test_without_a_common_version_it_is_a_mismatch_and_not_asked_again(
    theirs: Versions,
) -> None:
    asked: list[int] = []
    async with RouterClient(
        "http://127.0.0.1:1", transport=server(theirs, asked), spoken=Versions(3, 5)
    ) as client:
        with pytest.raises(ProtocolMismatch):
            await client.meta()

    assert asked == [5]


async def test_a_server_that_refuses_what_it_says_it_speaks_is_asked_once_more_only() -> None:
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(int(request.headers[PROTOCOL_HEADER]))
        found = problem("version-unsupported", "no", low=1, high=9)
        kind = {"Content-Type": PROBLEM_MEDIA_TYPE}
        return httpx.Response(found.status, content=to_wire(found), headers=kind)

    async with RouterClient(
        "http://127.0.0.1:1", transport=httpx.MockTransport(answer), spoken=Versions(1, 2)
    ) as client:
        with pytest.raises(ProtocolMismatch):
            await client.meta()

    assert asked == [2]
