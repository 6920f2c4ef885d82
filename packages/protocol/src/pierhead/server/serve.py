"""One ASGI application on one port, stopped without losing a request.

At the first SIGTERM or SIGINT the application is told to drain: it answers what it holds, at once,
and says so to whoever comes back; then the listener closes. A second signal does not wait.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem

# Uploads that are under way get so long to end after the listener closed.
STOP_SECONDS = 10


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which ends a graceful stop with the signal's code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any.

    Raises:
        Unavailable: the address is in use or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        text = f"cannot listen on {host}:{port}: {error.strerror}"
        hint = "choose another: --port 7444"
        raise Unavailable(problem("dependency-unavailable", text, hint=hint)) from error
    listener.listen(1024)
    return listener


async def serve(app: Any, listener: socket.socket, *, drain: Callable[[], None]) -> None:
    """Serve until a signal comes, then drain and stop."""
    config = uvicorn.Config(
        app,
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=75,  # over the clients' 30 s, so that they close first
        h11_max_incomplete_event_size=64 * 1024,
    )
    server = _Server(config)

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True
        drain()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await server.serve(sockets=[listener])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
