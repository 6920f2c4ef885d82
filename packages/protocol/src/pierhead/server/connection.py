"""An HTTP connection that can send a file without reading it (sendfile(2)), or cut an answer.

uvicorn has no such things; this adds the ASGI extension `http.response.zerocopysend` to its
protocol, and one that ends an answer which cannot become whole. An error would do that too, but
every layer on its way would take it for a mistake of the program.

The socket is used through a descriptor of its own, so the event loop, which owns the other one,
goes on reading from it and closes it when it likes.
"""

import asyncio
import os
import select
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from pierhead.server.bounded import Bounded
from pierhead.server.files import CUT, ZERO_COPY, ShortFile
from pierhead.server.handover import Pipe, of_registry
from pierhead.server.peer import Peer
from pierhead.server.threads import in_thread

# What one hop to a thread moves, if the reader keeps up with it.
BURST_BYTES: Final = 64 * 1024 * 1024
STEP_BYTES: Final = 512 * 1024  # what stays in the processor's cache until the reader has it
KEEPS_UP_MS: Final = 5
SLOW_SECONDS: Final = 60.0  # a reader that takes nothing for longer is gone


class Connection(Bounded):
    """One connection; with TLS it is like any other."""

    peer: Peer | None = None  # of one whose TLS the gate speaks
    # Of a connection that another process accepted: the way back for requests that are its own.
    back: Pipe | None = None
    carried = b""  # what that process had read of the first request
    _is_clear = False  # between the visitor, or the gate, and this process
    _first = b""
    _complete = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, with what was read before."""
        super().connection_made(transport)
        self._is_clear = self.scheme == "http"
        if self.peer is not None:
            self.scheme, self.client = "https", (self.peer.address, self.peer.port)
        if self.carried:
            super().data_received(self.carried)

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first ones of a request may show that it belongs to the other process."""
        if self.back is None or not self._is_between_requests():
            super().data_received(data)
            return
        data, self._first = self._first + data, b""
        ours = of_registry(data)
        if ours is None:
            self._first = data
        elif ours or not self._give_back(data):
            super().data_received(data)

    def _is_between_requests(self) -> bool:
        return self._complete and (self.cycle is None or self.cycle.response_complete)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._complete = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """A request has come in whole."""
        self._complete = True
        super().on_message_complete()

    def _give_back(self, data: bytes) -> bool:
        assert self.back is not None
        self.transport.pause_reading()
        descriptor = self.transport.get_extra_info("socket").fileno()
        if not self.back.give(descriptor, data, self.peer):
            self.transport.resume_reading()
            return False
        self._unset_keepalive_if_required()
        self.transport.abort()  # its own descriptor only: the connection goes on elsewhere
        return True

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        extensions = cycle.scope.setdefault("extensions", {})
        extensions[CUT] = {}
        if self._is_clear:
            extensions[ZERO_COPY] = {}
        super()._start_asgi_task(cycle, _extended(cycle, app))


def _extended(cycle: Any, app: Any) -> Any:
    """Return the application, with the messages that it may send besides the usual ones."""

    async def extended(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == CUT:
                _cut(cycle)
            elif message["type"] == ZERO_COPY:
                await _flushed(cycle)
                if not cycle.disconnected:
                    await _send_file(cycle, message["file"], message["offset"], message["count"])
            else:
                await send(message)

        await app(scope, receive, sending)

    return extended


def _cut(cycle: Any) -> None:
    """End an answer before its length: what was sent of it still arrives, and nothing more."""
    cycle.disconnected = True  # uvicorn then does not miss the rest
    cycle.transport.close()


async def _flushed(cycle: Any) -> None:
    """Wait until the headers are out: what follows does not go through the same buffer."""
    while cycle.transport.get_write_buffer_size() and not cycle.disconnected:  # noqa: ASYNC110
        await asyncio.sleep(0.0005)


async def _send_file(cycle: Any, file: int, offset: int, count: int) -> None:
    out = os.dup(cycle.transport.get_extra_info("socket").fileno())
    end = offset + count
    try:
        async with asyncio.timeout(SLOW_SECONDS) as limit:
            while offset < end and not cycle.disconnected:
                sent, full = await in_thread(_burst, out, file, offset, end)
                offset += sent
                if sent:
                    limit.reschedule(asyncio.get_running_loop().time() + SLOW_SECONDS)
                if full:
                    await _writable(out)
    except ShortFile:
        raise
    except (OSError, TimeoutError):
        cycle.disconnected = True  # the reader is gone; a short answer must not look whole
        cycle.transport.abort()
    else:
        cycle.expected_content_length -= count
    finally:
        os.close(out)


def _burst(out: int, file: int, offset: int, end: int) -> tuple[int, bool]:
    """Send for a while, as long as the reader keeps up.

    Return how much was sent, and whether the socket is full: then the event loop waits, not a
    thread, so that slow readers cost nobody else anything.
    """
    begun, stop, room = offset, min(end, offset + BURST_BYTES), select.poll()
    room.register(out, select.POLLOUT)
    while offset < stop:
        try:
            moved = os.sendfile(out, file, offset, min(STEP_BYTES, stop - offset))
        except BlockingIOError:
            if not room.poll(KEEPS_UP_MS):
                return offset - begun, True
            continue
        if moved == 0:
            raise ShortFile(offset)
        offset += moved
    return offset - begun, False


async def _writable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)
