"""Speaks TLS for a control plane, as a process of its own: `python -m pierhead.server.gate`.

Standard input is a socket, by which connections come that begin with a handshake. With each comes
one end of a pair, whose other end is already where the connection is going: what the visitor says
goes on there in the clear, and back. The pair's end can be passed between processes, as a
connection without TLS can; the keys stay here. A byte goes back for each that was received.

It reads nothing of what it carries, and knows neither requests nor who answers them. When its input
ends, no connection comes any more; those that are open go on to their end.

The standard library only. Its TLS for event loops keeps 280 kB for a connection that is silent, so
here it is OpenSSL's object and two buffers that all connections share.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Final

from pierhead.server.handshake import Folder

HANDSHAKE_SECONDS: Final = 15.0
# A reader that takes nothing of the last bytes for longer is gone.
LAST_BYTES_SECONDS: Final = 60.0
# So long is waited for the visitor's own end after ours.
LINGER_SECONDS: Final = 5.0
# What is open at a SIGTERM gets so long; the control plane takes less to end what it holds.
STOP_SECONDS: Final = 15.0
# What is read is passed on before anybody reads again.
_READ: Final = memoryview(bytearray(256 * 1024))
_HEARD: Final = memoryview(bytearray(256 * 1024))


class _Side(asyncio.BufferedProtocol):
    """One side of a connection. Neither is read while the other one has much left to say."""

    other: "_Side"
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ

    def pause_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class _Inside(_Side):
    """The end of the pair: what comes from there is said to the visitor."""

    other: "_Visitor"

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def buffer_updated(self, nbytes: int) -> None:
        self.other.say(_READ[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)

    def say(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def no_more(self) -> None:
        """The visitor says nothing any more: it is for who is inside to end it."""
        with contextlib.suppress(OSError):
            if not self.transport.is_closing():
                self.transport.write_eof()


class _Visitor(_Side):
    """The connection with TLS."""

    other: _Inside

    def __init__(self, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        self.shaken: asyncio.Future[bool] = loop.create_future()
        self.silent = loop.create_future()  # for good
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def buffer_updated(self, nbytes: int) -> None:
        if self.silent.done():
            return
        self._incoming.write(_READ[:nbytes])
        try:
            if not self.shaken.done():
                self._tls.do_handshake()
                self.shaken.set_result(True)
            while heard := self._hear():
                self.other.say(heard)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # the visitor's end, or no TLS
            self._hear_no_more()
        self._flush()

    def eof_received(self) -> bool:
        self._hear_no_more()
        return True  # what is left to say to it is said

    def connection_lost(self, exc: Exception | None) -> None:
        self._hear_no_more()

    def say(self, data: memoryview) -> None:
        try:
            while data and not self.transport.is_closing():
                data = data[self._tls.write(data) :]
        except ssl.SSLError:  # the visitor broke it
            self.transport.abort()
        self._flush()

    def end(self) -> None:
        """Say that there is no more."""
        if self.transport.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # it has not said the same yet
            self._tls.unwrap()
        self._flush()

    def _hear(self) -> bytes:
        filled = 0
        try:
            while filled < len(_HEARD):
                read = int(self._tls.read(len(_HEARD) - filled, _HEARD[filled:]))
                if not read:
                    raise ssl.SSLZeroReturnError
                filled += read
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            if not filled:
                raise
        return bytes(_HEARD[:filled])

    def _hear_no_more(self) -> None:
        if not self.silent.done():
            self.silent.set_result(None)
            self.other.no_more()
        if not self.shaken.done():
            self.shaken.set_result(False)

    def _flush(self) -> None:
        if self._outgoing.pending and not self.transport.is_closing():
            self.transport.write(self._outgoing.read())


class Gate:
    """Takes connections, and carries each until it ends."""

    def __init__(self, end: socket.socket, certificates: Folder) -> None:
        end.setblocking(False)
        self._end = end
        self._certificates = certificates
        self._carrying: set[asyncio.Task[None]] = set()
        self._no_more = asyncio.Event()

    async def run(self) -> None:
        """Return when no connection comes any more, and none is open."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._end, self._receive)
        await self._no_more.wait()
        loop.remove_reader(self._end)
        if self._carrying:
            await asyncio.wait(self._carrying)

    def _receive(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._end, 1, 2)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            self._no_more.set()
            return
        with contextlib.suppress(OSError):  # whoever gave it is gone
            self._end.send(b"\0")
        given = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        context = self._certificates.context()
        if len(given) < 2 or context is None:  # it had no descriptors free
            for end in given:
                end.close()
            return
        task = asyncio.create_task(_carry(given[0], given[1], context))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)


async def _carry(connection: socket.socket, end: socket.socket, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    inside, visitor = _Inside(), _Visitor(context)
    inside.other, visitor.other = visitor, inside
    with contextlib.ExitStack() as closing:
        for taken in (connection, end):
            taken.setblocking(False)
            closing.callback(taken.close)
        await loop.connect_accepted_socket(lambda: inside, end)
        inside.transport.pause_reading()
        await loop.connect_accepted_socket(lambda: visitor, connection)
        closing.pop_all()
    await asyncio.wait([visitor.shaken], timeout=HANDSHAKE_SECONDS)
    if visitor.shaken.done() and visitor.shaken.result():
        inside.transport.resume_reading()
        await inside.ended
        visitor.end()
    else:
        inside.transport.abort()
    await _farewell(visitor)


async def _farewell(visitor: _Visitor) -> None:
    """Let a visitor hear the last bytes; one who goes on talking is cut off then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_BYTES_SECONDS):
            while visitor.transport.get_write_buffer_size():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.wait([visitor.silent], timeout=LINGER_SECONDS)
    visitor.transport.abort()


async def _run(end: socket.socket, certificates: Folder) -> None:
    loop, work = asyncio.get_running_loop(), asyncio.create_task(Gate(end, certificates).run())
    loop.add_signal_handler(signal.SIGTERM, lambda: loop.call_later(STOP_SECONDS, work.cancel))
    with contextlib.suppress(asyncio.CancelledError):
        await work


def main(folder: str, domain: str | None = None) -> int:
    """Carry connections until there are none; return the exit code."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection takes two
    certificates = Folder(Path(folder), domain)
    if certificates.context() is None:
        print(f"gate: no certificate in {folder}", file=sys.stderr)
        return 1
    with socket.socket(fileno=sys.stdin.fileno()) as end:
        asyncio.run(_run(end, certificates))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
