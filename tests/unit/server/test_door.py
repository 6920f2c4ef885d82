"""Nobody who comes while a door closes is left hanging: whoever was taken in is let go."""

import asyncio
import contextlib
import gc
import socket

import pytest

from pierhead.server.door import LOOPBACK, Door


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
