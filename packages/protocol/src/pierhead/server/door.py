"""Lets connections in: by TLS, or in the clear for those who may.

Both are spoken on one port. The first byte tells them apart: a TLS handshake begins with 22, and no
HTTP request does. It is looked at and not taken, so that whoever speaks next sees it.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias

from pierhead.server.log import get_logger

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
# Returns what answers a handshake that begins with these bytes.
ContextFor: TypeAlias = Callable[[bytes], ssl.SSLContext]
# Gives a connection that begins with these bytes to another process; false: it stays here.
GiveAway: TypeAlias = Callable[[socket.socket, bytes], bool]
LOOPBACK: Final = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
EVERYBODY: Final = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
HANDSHAKE: Final = 0x16  # RFC 8446, section 5.1
RECORD_BYTES_MAX: Final = 5 + 2**14
FIRST_SECONDS: Final = 15.0
HANDSHAKE_SECONDS: Final = 15.0
# Who connects and says nothing costs a descriptor; so many may, and no more.
WAITING_MAX: Final = 512
_CLEAR_TEXT: Final = (
    b"this port speaks TLS: write https:// instead of http://\n"
    b"(plain HTTP is answered on the control plane's own machine only)\n"
)
REFUSAL: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_CLEAR_TEXT), _CLEAR_TEXT)
)
log = get_logger()


class Door:
    """One listening socket; looks like a server of the event loop."""

    def __init__(
        self,
        listener: socket.socket,
        new_protocol: Callable[[], asyncio.Protocol],
        *,
        context_for: ContextFor | None,
        clear_for: tuple[Network, ...],
        give_away: GiveAway | None = None,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._new_protocol = new_protocol
        self._context_for = context_for
        self._clear_for = clear_for
        self._give_away = give_away
        self._coming: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        self._accepting.cancel()
        for task in self._coming:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when it is closed."""
        await asyncio.gather(self._accepting, *self._coming, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                # Out of descriptors, or a connection that was gone before it was let in.
                log.warning("door.error", error=error.strerror)
                await asyncio.sleep(0.05)
                continue
            if len(self._coming) >= WAITING_MAX:
                connection.close()
                continue
            task = asyncio.create_task(self._let_in(connection, peer[0]))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    async def _let_in(self, connection: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as closing:
            closing.callback(connection.close)
            try:
                async with asyncio.timeout(FIRST_SECONDS):
                    first = await self._first_bytes(connection)
            except (OSError, TimeoutError):
                return
            secure = first[:1] == bytes([HANDSHAKE]) and self._context_for is not None
            if not secure and not self._may_speak_in_the_clear(peer):
                _refuse(connection)
                return
            if not secure and self._give_away is not None and self._give_away(connection, first):
                return  # it is the other process's, and stays open there
            closing.pop_all()  # the transport closes it from here on
            with contextlib.suppress(OSError, ssl.SSLError):
                await loop.connect_accepted_socket(
                    self._new_protocol,
                    connection,
                    ssl=self._context_for(first) if secure and self._context_for else None,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS if secure else None,
                )

    async def _first_bytes(self, connection: socket.socket) -> bytes:
        """Return the first TLS record, or at least one byte of anything else, without taking it."""
        connection.setblocking(False)
        while True:
            await _readable(connection)
            first = connection.recv(RECORD_BYTES_MAX, socket.MSG_PEEK)
            if first[:1] != bytes([HANDSHAKE]) or len(first) >= _record_bytes(first):
                return first
            await asyncio.sleep(0.01)  # the rest is on its way; what is there stays readable

    def _may_speak_in_the_clear(self, peer: str) -> bool:
        address = ipaddress.ip_address(peer.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._clear_for)


def _record_bytes(first: bytes) -> int:
    """Return how long the record is that begins so; its header of 5 bytes says it."""
    return 5 + int.from_bytes(first[3:5]) if len(first) >= 5 else RECORD_BYTES_MAX


def _refuse(connection: socket.socket) -> None:
    """Say why nothing is answered; what was not read would make the system cut the answer off."""
    with contextlib.suppress(OSError):
        connection.recv(RECORD_BYTES_MAX)
        connection.send(REFUSAL)
        connection.shutdown(socket.SHUT_WR)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
