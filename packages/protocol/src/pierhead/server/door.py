"""Lets connections in: by TLS, or in the clear for those who may.

Both are spoken on one port. The first byte tells them apart: a TLS handshake begins with 22, and no
HTTP request does. It is looked at and not taken, so that whoever speaks next sees it.
"""

import asyncio
import contextlib
import functools
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from pierhead.server.log import get_logger
from pierhead.server.peer import Peer

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
# Returns what answers a handshake that begins with these bytes.
ContextFor: TypeAlias = Callable[[bytes], ssl.SSLContext]
# Leaves a handshake that begins with these bytes to another process; returns the socket on which
# its visitor is heard in the clear; none: it stays here.
Through: TypeAlias = Callable[[socket.socket, bytes], socket.socket | None]
# Gives a connection that begins with these bytes to another process; false: it stays here. The
# peer: of one whose TLS somebody else speaks.
GiveAway: TypeAlias = Callable[[socket.socket, bytes, Peer | None], bool]
LOOPBACK: Final = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
EVERYBODY: Final = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
HANDSHAKE: Final = 0x16  # RFC 8446, section 5.1
RECORD_BYTES_MAX: Final = 5 + 2**14
FIRST_SECONDS: Final = 15.0
HANDSHAKE_SECONDS: Final = 15.0
# Who connects and says nothing costs a descriptor; so many may, and no more: of this machine and
# its proxies, and as many of all others, who share them by address. Behind one may be an office.
WAITING_MAX: Final = 512
SHARE_MAX: Final = 64
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
        new_protocol: Callable[[Peer | None], asyncio.Protocol],
        *,
        context_for: ContextFor | None,
        clear_for: tuple[Network, ...],
        through: Through | None = None,
        give_away: GiveAway | None = None,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._new_protocol = new_protocol
        self._context_for = context_for
        self._clear_for = clear_for
        self._through = through
        self._give_away = give_away
        self._coming: set[asyncio.Task[None]] = set()
        self._waiting: Counter[str] = Counter()  # how many of them there are of each share
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
        while True:
            try:
                # Not `sock_accept`: when that is cancelled, it may have a connection already.
                await _readable(self._listener)
                connection, peer = self._listener.accept()
            except BlockingIOError:
                continue  # whoever it was is gone
            except OSError as error:
                # Out of descriptors, or a connection that was gone before it was let in.
                log.warning("door.error", error=error.strerror)
                await asyncio.sleep(0.05)
                continue
            visitor = Peer(*peer[:2])
            share = self._share(visitor)
            if not self._has_room(share):
                connection.close()
                continue
            task = asyncio.create_task(self._let_in(connection, visitor))
            self._coming.add(task)
            self._waiting[share] += 1
            task.add_done_callback(functools.partial(self._came, connection, share))

    def _share(self, visitor: Peer) -> str:
        """Return whose share a visitor takes of the room before the door; empty: of our own."""
        if self._is_clear(visitor):
            return ""
        address = visitor.unmapped
        # A machine has all of the addresses of a /64 (RFC 4291, section 2.5.4).
        length = 64 if address.version == 6 else 32
        return str(ipaddress.ip_network((address, length), strict=False))

    def _has_room(self, share: str) -> bool:
        ours = self._waiting[""]
        if not share:
            return ours < WAITING_MAX
        return self._waiting.total() - ours < WAITING_MAX and self._waiting[share] < SHARE_MAX

    def _came(self, connection: socket.socket, share: str, task: asyncio.Task[None]) -> None:
        self._coming.discard(task)
        self._waiting[share] -= 1
        if not self._waiting[share]:
            del self._waiting[share]
        if task.cancelled():  # perhaps before its first step
            connection.close()

    async def _let_in(self, connection: socket.socket, peer: Peer) -> None:
        first = await self._first_bytes(connection, FIRST_SECONDS)
        if first[:1] == bytes([HANDSHAKE]) and self._context_for is not None:
            await self._let_in_by_tls(connection, first, peer)
        elif first and not self._is_clear(peer):
            _refuse(connection)
            connection.close()
        else:
            await self._let_in_clear(connection, first)

    def _is_clear(self, peer: Peer) -> bool:
        """Say whether a visitor may speak in the clear: one of this machine, or of its proxies."""
        return any(peer.unmapped in network for network in self._clear_for)

    async def _let_in_by_tls(self, connection: socket.socket, first: bytes, peer: Peer) -> None:
        inside = self._through(connection, first) if self._through else None
        if inside is None:
            assert self._context_for is not None
            await self._connect(connection, None, self._context_for(first))
            return
        connection.close()
        # The other process makes the handshake before anything is heard.
        first = await self._first_bytes(inside, HANDSHAKE_SECONDS + FIRST_SECONDS)
        await self._let_in_clear(inside, first, peer)

    async def _let_in_clear(
        self, connection: socket.socket, first: bytes, peer: Peer | None = None
    ) -> None:
        if not first or (self._give_away and self._give_away(connection, first, peer)):
            connection.close()  # it is gone, or the other process's, and stays open there
        else:
            await self._connect(connection, peer)

    async def _connect(
        self, connection: socket.socket, peer: Peer | None, context: ssl.SSLContext | None = None
    ) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._new_protocol(peer),
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if context else None,
            )

    async def _first_bytes(self, connection: socket.socket, seconds: float) -> bytes:
        """Return the first TLS record, or at least one byte of anything else, without taking it.

        Nothing, if it ended before or took longer.
        """
        connection.setblocking(False)
        try:
            async with asyncio.timeout(seconds):
                return await _peeked(connection)
        except (OSError, TimeoutError):
            return b""
        except asyncio.CancelledError:
            connection.close()
            raise


async def _peeked(connection: socket.socket) -> bytes:
    while True:
        await _readable(connection)
        first = connection.recv(RECORD_BYTES_MAX, socket.MSG_PEEK)
        if first[:1] != bytes([HANDSHAKE]) or len(first) >= _record_bytes(first):
            return first
        await asyncio.sleep(0.01)  # the rest is on its way; what is there stays readable


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
