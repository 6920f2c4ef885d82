"""Nobody is left hanging before a door that closes, and nobody keeps others from it."""

import asyncio
import contextlib
import gc
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest

from pierhead.server import door as doors
from pierhead.server.door import LOOPBACK, Door, Network

Silent: TypeAlias = Awaitable[list[bool]]


class Host(asyncio.Protocol):
    """Answers nobody."""


@pytest.mark.parametrize("moments", range(12))
async def test_a_door_that_closes_keeps_no_connection_that_was_not_let_in(moments: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    door = Door(listener, lambda _: Host(), context_for=None, clear_for=LOOPBACK)
    await asyncio.sleep(0)
    with socket.create_connection(listener.getsockname()) as visitor:
        visitor.settimeout(20)
        for _ in range(moments):
            await asyncio.sleep(0)
        door.close()
        await door.wait_closed()
        listener.close()
        gc.collect()  # a connection that nobody has any more is an error of the test

        with contextlib.suppress(ConnectionResetError):  # it was still before the door
            assert visitor.recv(1) == b""


@pytest.fixture
async def silent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Silent]]:
    """Let visitors come who say nothing, to a door that has room for few."""
    monkeypatch.setattr(doors, "SHARE_MAX", 2)
    monkeypatch.setattr(doors, "WAITING_MAX", 5)
    async with contextlib.AsyncExitStack() as opened:

        async def come(clear_for: tuple[Network, ...], *addresses: str) -> list[bool]:
            listener = socket.create_server(("0.0.0.0", 0))
            door = Door(listener, lambda _: Host(), context_for=None, clear_for=clear_for)
            opened.callback(listener.close)
            opened.push_async_callback(door.wait_closed)
            opened.callback(door.close)
            ends = []
            for number, address in enumerate(addresses, 1):
                way = {"host": address, "port": listener.getsockname()[1]}
                reader, writer = await asyncio.open_connection(**way, local_addr=(address, 0))
                opened.callback(writer.close)
                ends.append(asyncio.create_task(reader.read(1)))
                async with asyncio.timeout(20):  # until it waits, or was sent away
                    while len(door._coming) + sum(end.done() for end in ends) < number:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
            return [not end.done() for end in ends]

        yield come


async def test_one_address_takes_no_more_than_its_share_of_the_room(
    silent: Callable[..., Silent],
) -> None:
    one, two, three, four = (f"127.0.0.{number}" for number in range(1, 5))
    came = await silent((), one, one, one, two, two, two, three, three, four)
    #                                                  the room is full from here on
    assert came == [True, True, False, True, True, False, True, False, False]


async def test_this_machine_and_its_proxies_have_room_of_their_own(
    silent: Callable[..., Silent],
) -> None:
    ours = (ipaddress.ip_network("127.0.0.9/32"),)
    others = [f"127.0.0.{number}" for number in (1, 1, 2, 2, 3, 3)]
    came = await silent(ours, *others, *["127.0.0.9"] * 6)
    assert came == [*[True] * 5, False, *[True] * 5, False]
