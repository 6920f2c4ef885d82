"""An HTTP connection on which nobody can wait for ever, or send a request without an end.

uvicorn bounds neither the head of a request nor the time in which it comes. Bodies are bounded
where they are read; here is how long one may stop in between.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pierhead.protocol.errors import Invalid
from pierhead.protocol.problem import problem

HEAD_BYTES_MAX: Final = 64 * 1024  # nginx takes 32 KiB, most of it never needed
HEAD_SECONDS: Final = 30.0
BODY_SECONDS: Final = 60.0  # without a single byte of a body that was announced


class HeadTooLarge(Exception):
    """The parser stops on it, and the connection ends with a 400."""


class Bounded(HttpToolsProtocol):
    """One connection, whose first request has to come in time, and all in time and of a size."""

    head_seconds = HEAD_SECONDS
    _head_bytes = 0
    _head_is_coming = False  # some of it is here, and not all
    _impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin: whoever comes wants something, and a connection costs a descriptor."""
        super().connection_made(transport)
        self._hurry()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that is not whole yet may not grow or last for ever."""
        came_before = self._head_is_coming
        super().data_received(data)
        if not self._head_is_coming or self.transport.is_closing():
            return
        if came_before:  # else it begins somewhere in these bytes, maybe behind a long body
            self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response("the head of the request is too large")
        else:
            self._hurry()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; many may come in one piece, before their bytes are counted."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge
        super().on_header(name, value)

    def on_message_begin(self) -> None:
        """A request begins; between two of them nobody has to hurry."""
        self._head_is_coming, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole; what follows is the body."""
        self._head_is_coming = False
        self._be_patient()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing comes any more."""
        self._be_patient()
        super().connection_lost(exc)

    def _hurry(self) -> None:
        if self._impatience is None:
            self._impatience = self.loop.call_later(self.head_seconds, self.transport.close)

    def _be_patient(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None


class Patience:
    """Middleware: a body that stops in between is waited for so long, and no longer."""

    def __init__(self, app: ASGIApp, seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; other kinds of connections have no body."""
        awaited = scope["type"] == "http"

        async def bounded() -> Message:
            nonlocal awaited
            if not awaited:
                return await receive()  # for the end of the connection, which may take long
            try:
                async with asyncio.timeout(self._seconds):
                    message = await receive()
            except TimeoutError as error:
                detail = f"nothing of the body came for {self._seconds:.0f} s"
                found = problem("invalid-document", detail, hint="send the whole of it")
                raise Invalid(found) from error
            awaited = message["type"] == "http.request" and message.get("more_body", False)
            return message

        await self._app(scope, bounded, send)
