"""Connections pass between two processes of one control plane, so that one address serves both.

Whoever accepts a connection looks at its first request, without taking it, and gives the connection
itself to the other process if the request is for the registry: no byte is copied, nothing stands in
between. On a connection that is kept open the next request may belong elsewhere; then it goes back,
with the bytes that were read already. Both ends of the same pipe speak and listen.

A connection under TLS stays where its handshake was: its keys cannot be given away. Where the gate
speaks it, what is passed on is the end of a pair, with the name of who is at the other side.
"""

import asyncio
import contextlib
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from pierhead.server.peer import LINE_BYTES_MAX, Peer, as_line, from_line

# A request line whose path is of the registry, once so much is there that it can be told.
_REGISTRY: Final = re.compile(rb"[A-Z]{3,7} /v2[/? ]")
_UNDECIDED: Final = re.compile(rb"[A-Z]{0,7}\Z|[A-Z]{3,7} (?:\Z|/\Z|/v\Z|/v2\Z)")
# One message of the pipe: what was read of the request. Longer ones stay where they are.
CARRIED_BYTES_MAX: Final = 64 * 1024
_DESCRIPTOR: Final = struct.calcsize("i")
# Takes a connection, what was read of it, and whose it is if its socket cannot say so.
Take: TypeAlias = Callable[[socket.socket, bytes, Peer | None], None]
log = structlog.get_logger()


def of_registry(first: bytes) -> bool | None:
    """Say whether a request that begins so is for the registry; none: it cannot be told yet."""
    if _REGISTRY.match(first):
        return True
    return None if _UNDECIDED.match(first) else False


class Pipe:
    """One end of what two processes pass connections through."""

    def __init__(self, end: socket.socket, take: Take) -> None:
        end.setblocking(False)
        self._end = end
        self._take = take
        asyncio.get_running_loop().add_reader(end, self._receive)

    @property
    def is_open(self) -> bool:
        """Whether the other process was there when it was last used."""
        return self._end.fileno() >= 0

    def give(self, descriptor: int, read: bytes = b"", peer: Peer | None = None) -> bool:
        """Give a connection away, with what was read of it; false: it stays here.

        The caller closes its own descriptor afterwards; the connection stays open.
        """
        if not self.is_open or len(read) > CARRIED_BYTES_MAX:
            return False
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
        try:
            self._end.sendmsg([as_line(peer) + read], rights)
        except BlockingIOError:
            return False  # the other one is busy: so many wait already
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Pass nothing on any more."""
        if self.is_open:
            asyncio.get_running_loop().remove_reader(self._end)
            self._end.close()

    def _receive(self) -> None:
        try:
            message, rights, _, _ = self._end.recvmsg(
                LINE_BYTES_MAX + CARRIED_BYTES_MAX,
                socket.CMSG_SPACE(_DESCRIPTOR),
                socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return
        except OSError:
            message, rights = b"", []
        if not message:
            self.close()
            return
        line, _, read = message.partition(b"\n")
        for _, _, data in rights:
            [descriptor] = struct.unpack("i", data[:_DESCRIPTOR])
            self._take(socket.socket(fileno=descriptor), read, from_line(line))


class Giver:
    """The end of whoever accepts connections: finds the other process when there is one."""

    def __init__(self, path: Path, take: Take) -> None:
        self._path = path
        self._take = take
        self._pipe: Pipe | None = None

    def somebody_is_there(self) -> bool:
        """Say whether there is another process to give connections to."""
        if self._pipe is None or not self._pipe.is_open:
            self._pipe = self._connect()
        return self._pipe is not None

    def give(self, connection: socket.socket, first: bytes, peer: Peer | None) -> bool:
        """Give a connection away if it is for the registry, and somebody is there."""
        if not of_registry(first) or not self.somebody_is_there():
            return False
        assert self._pipe is not None
        return self._pipe.give(connection.fileno(), peer=peer)

    def close(self) -> None:
        """Pass nothing on any more."""
        if self._pipe is not None:
            self._pipe.close()

    def _connect(self) -> Pipe | None:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.setblocking(False)
        try:
            with _address(self._path) as address:
                end.connect(address)
        except OSError:  # nobody is there: then it is answered here
            end.close()
            return None
        log.info("handover.connected")
        return Pipe(end, self._take)


class Taker:
    """The end of whoever is given connections: waits for the other process to come."""

    def __init__(
        self, path: Path, take: Callable[[socket.socket, bytes, Peer | None, Pipe], None]
    ) -> None:
        """Listen on a socket of the file system.

        Raises:
            OSError: the folder cannot be written to.
        """
        path.unlink(missing_ok=True)
        self._path = path
        self._take = take
        self._pipes: list[Pipe] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        before = os.umask(0o177)
        try:
            with _address(path) as address:
                self._listener.bind(address)
        finally:
            os.umask(before)
        self._listener.listen(8)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Take nothing any more; connections that were taken go on."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for pipe in self._pipes:
            pipe.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            end, _ = self._listener.accept()
            self._pipes = [pipe for pipe in self._pipes if pipe.is_open]
            self._pipes.append(self._opened(end))

    def _opened(self, end: socket.socket) -> Pipe:
        pipe: Pipe

        def take(connection: socket.socket, read: bytes, peer: Peer | None) -> None:
            self._take(connection, read, peer, pipe)

        pipe = Pipe(end, take)
        return pipe


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """Give an address of a socket that is under the kernel's 108 bytes, however deep its folder."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
