"""Speaks TLS for a control plane, as a process of its own: `python -m pierhead.server.gate`.

Standard input is a socket, by which connections come that begin with a handshake. With each comes
one end of a pair, whose other end is already where the connection is going: what the visitor says
goes on there in the clear, and back. The pair's end can be passed between processes, as a
connection without TLS can; the keys stay here.

It reads nothing of what it carries, and knows neither requests nor who answers them. When its input
ends, no connection comes any more; those that are open go on to their end.

The standard library only, and its event loop: so it is small, and what it does costs the same.
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


# All read into the same place: what is heard is passed on before anybody reads again. Without it, a
# quarter of a megabyte is allocated for each record of TLS.
_HEARD: Final = memoryview(bytearray(256 * 1024))


class _Side(asyncio.BufferedProtocol):
    """One side of a connection: what it hears, the other one says while it can.

    Neither hears more while the other has much left to say, so that what is held here is bounded.
    """

    other: "_Side"
    transport: asyncio.Transport | None = None

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return _HEARD

    def buffer_updated(self, nbytes: int) -> None:
        if self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.write(bytes(_HEARD[:nbytes]))

    def pause_writing(self) -> None:
        self.other.listen(wanted=False)

    def resume_writing(self) -> None:
        self.other.listen(wanted=True)

    def listen(self, *, wanted: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


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
        given = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        context = self._certificates.context()
        if len(given) < 2 or context is None:  # it had no descriptors free
            for end in given:
                end.close()
            return
        task = asyncio.create_task(_carry(given[0], given[1], context))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)


async def _carry(visitor: socket.socket, inside: socket.socket, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    secure, clear = _Side(), _Side()
    secure.other, clear.other = clear, secure
    visitor.setblocking(False)
    inside.setblocking(False)
    try:
        await loop.connect_accepted_socket(lambda: clear, inside)
        clear.listen(wanted=False)
        await loop.connect_accepted_socket(
            lambda: secure,
            visitor,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=LAST_BYTES_SECONDS,
        )
    except (OSError, asyncio.CancelledError):  # no handshake, or not in time
        visitor.close()
        if clear.transport is None:
            inside.close()
            return
        clear.transport.abort()
    else:
        clear.listen(wanted=True)
        await asyncio.wait([secure.ended, clear.ended], return_when=asyncio.FIRST_COMPLETED)
        await _farewell(secure)
        assert clear.transport is not None
        clear.transport.close()  # once it has said what is left
    await clear.ended


async def _farewell(secure: _Side) -> None:
    """Let a visitor hear the last bytes; one who goes on talking is cut off then."""
    transport = secure.transport
    assert transport is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_BYTES_SECONDS):
            while not transport.is_closing() and transport.get_write_buffer_size():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            if not transport.is_closing():
                transport.close()
            await asyncio.wait([secure.ended], timeout=LINGER_SECONDS)
    if not secure.ended.done():
        transport.abort()


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
