"""One ASGI application on its listening sockets, stopped without losing a request.

At the first SIGTERM or SIGINT the application is told to drain: it answers what it holds, at once,
and says so to whoever comes back; then the listener closes. A second signal does not wait.
"""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import uvicorn

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem
from pierhead.server.connection import Connection
from pierhead.server.door import LOOPBACK, ContextFor, Door, Network
from pierhead.server.gateway import Gateway
from pierhead.server.handover import Giver, Pipe, Taker
from pierhead.server.peer import Peer

# Uploads that are under way get so long to end after the listener closed.
STOP_SECONDS = 10
DESCRIPTORS = 16_384


class _Server(uvicorn.Server):
    """uvicorn behind doors of our own, without its signal handling.

    That ends a graceful stop with the signal's code.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        context_for: ContextFor | None,
        clear_for: tuple[Network, ...],
        *,
        gives_to: Path | None,
        takes_at: Path | None,
        gateway: Gateway | None,
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._context_for = context_for
        self._clear_for = clear_for
        self._giver = Giver(gives_to, self._take) if gives_to is not None else None
        self._takes_at = takes_at
        self._taker: Taker | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        doors: list[Any] = [
            Door(
                listener,
                self._protocol,
                context_for=self._context_for,
                clear_for=self._clear_for,
                through=self._through,
                give_away=self._giver.give if self._giver else None,
            )
            for listener in sockets or ()
        ]
        self.servers = doors
        if self._takes_at is not None:
            self._taker = Taker(self._takes_at, self._take)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for end in (self._giver, self._taker, self._gateway):
            if end is not None:
                end.close()
        await super().shutdown(sockets)
        if self._gateway is not None:
            await self._gateway.wait_closed()

    def _through(self, connection: socket.socket, first: bytes) -> socket.socket | None:
        """Leave a visitor's TLS to the gate, if there is another process to pass visitors to."""
        if self._gateway is None or self._giver is None or not self._giver.somebody_is_there():
            return None
        return self._gateway.through(connection, first)

    def _take(
        self, connection: socket.socket, read: bytes, peer: Peer | None, back: Pipe | None = None
    ) -> None:
        """Go on with a connection that another process accepted, or had for a while."""
        protocol = self._protocol(peer)
        protocol.back, protocol.carried = back, read
        task = asyncio.create_task(_speak(protocol, connection))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    def _protocol(self, peer: Peer | None) -> Connection:
        made = Connection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        made.peer = peer
        return made


async def _speak(protocol: Connection, connection: socket.socket) -> None:
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)
    except OSError:
        connection.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any.

    Raises:
        Unavailable: the address is in use or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. Without it, an answer in two pieces waits 40 ms for the client's
    # delayed acknowledgement of the first: the kernel's, and Nagle's, idea of saving packets.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if host == "::":
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        listener.bind((host, port))
        listener.listen(1024)  # of two that bound it at the same moment, only one can
    except OSError as error:
        listener.close()
        text = f"cannot listen on {host}:{port}: {error.strerror}"
        hint = "choose another: --port 7444"
        raise Unavailable(problem("dependency-unavailable", text, hint=hint)) from error
    return listener


class Service:
    """An application that can be served, and stopped by whoever serves it.

    `context_for` answers handshakes; none: there is no TLS. Whoever comes from a network of
    `clear_for` may do without. `gives_to`: the socket of a process that is given the connections of
    the registry, whenever there is one; `takes_at`: the socket to be that process. `gateway`: what
    speaks TLS in another process, so that such connections can be given away too.
    """

    def __init__(
        self,
        app: Any,
        *,
        drain: Callable[[], None],
        context_for: ContextFor | None = None,
        clear_for: tuple[Network, ...] = LOOPBACK,
        gives_to: Path | None = None,
        takes_at: Path | None = None,
        gateway: Gateway | None = None,
    ) -> None:
        self._drain = drain
        self._server = _Server(
            _config(app),
            context_for,
            clear_for,
            gives_to=gives_to,
            takes_at=takes_at,
            gateway=gateway,
        )

    async def run(self, listeners: Sequence[socket.socket]) -> None:
        """Serve until somebody stops it."""
        await self._server.serve(sockets=list(listeners))

    def stop(self) -> None:
        """Drain and stop; asked again, do not wait."""
        if self._server.should_exit:
            self._server.force_exit = True
        self._drain()
        self._server.should_exit = True


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",
        http=Connection,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody could send them
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=75,  # over the clients' 30 s, so that they close first
        h11_max_incomplete_event_size=64 * 1024,
    )


def _have_descriptors() -> None:
    """Be able to have as many connections as are wanted: a shell's 1024 are for select(2)."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, min(most, DESCRIPTORS)), most))


async def serve(service: Service, listeners: Sequence[socket.socket]) -> None:
    """Serve until a signal comes, then drain and stop. It is the process's main work."""
    _have_descriptors()
    async with anyio.create_task_group():
        pass  # what starlette streams with is only loaded at its first use: not in a request
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    try:
        await service.run(listeners)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
