"""One ASGI application on its listening sockets, stopped without losing a request.

At the first SIGTERM or SIGINT the application is told to drain: it answers what it holds, at once,
and says so to whoever comes back; then the listener closes. A second signal does not wait.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem
from pierhead.server.connection import Connection
from pierhead.server.door import LOOPBACK, ContextFor, Door, Network

# Uploads that are under way get so long to end after the listener closed.
STOP_SECONDS = 10


class _Server(uvicorn.Server):
    """uvicorn behind doors of our own, without its signal handling.

    That ends a graceful stop with the signal's code.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        context_for: ContextFor | None,
        clear_for: tuple[Network, ...],
    ) -> None:
        super().__init__(config)
        self._context_for = context_for
        self._clear_for = clear_for

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        doors: list[Any] = [
            Door(listener, self._protocol, context_for=self._context_for, clear_for=self._clear_for)
            for listener in sockets or ()
        ]
        self.servers = doors
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any.

    Raises:
        Unavailable: the address is in use or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if host == "::":
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        text = f"cannot listen on {host}:{port}: {error.strerror}"
        hint = "choose another: --port 7444"
        raise Unavailable(problem("dependency-unavailable", text, hint=hint)) from error
    listener.listen(1024)
    return listener


class Service:
    """An application that can be served, and stopped by whoever serves it.

    `context_for` answers handshakes; none: there is no TLS. Whoever comes from a network of
    `clear_for` may do without.
    """

    def __init__(
        self,
        app: Any,
        *,
        drain: Callable[[], None],
        context_for: ContextFor | None = None,
        clear_for: tuple[Network, ...] = LOOPBACK,
    ) -> None:
        self._drain = drain
        self._server = _Server(_config(app), context_for, clear_for)

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


async def serve(service: Service, listeners: Sequence[socket.socket]) -> None:
    """Serve until a signal comes, then drain and stop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop)
    try:
        await service.run(listeners)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
