"""An application in this process as the other side of a client.

Answers stream: what the application sends is read as it comes, and an application that is read
slowly waits. When an answer is closed early, the application is told as if a connection was cut.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

import httpx

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
# What an application may be ahead of its reader.
_AHEAD: Final = 4


class InProcess(httpx.AsyncBaseTransport):
    """Carries requests to an ASGI application."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Run the application for one request, and return when its answer has begun."""
        body = await request.aread()
        exchange = _Exchange(body)
        exchange.run(self._application, _scope(request))
        return await exchange.answer()


def _scope(request: httpx.Request) -> Message:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 0),
        "server": (request.url.host, request.url.port),
    }


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()  # nobody reads the answer any more
        self._begun: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        self._task: asyncio.Task[None] | None = None

    def run(self, application: Application, scope: Message) -> None:
        """Start the application."""
        self._task = asyncio.ensure_future(self._run(application, scope))

    async def _run(self, application: Application, scope: Message) -> None:
        try:
            await application(scope, self._receive, self._send)
        except Exception as error:
            # A server would log it and cut the connection.
            if not self._begun.done():
                cut = httpx.RemoteProtocolError(f"the application broke: {error!r}")
                self._begun.set_exception(cut)
        finally:
            if not self._begun.done():
                self._begun.set_exception(httpx.RemoteProtocolError("there was no answer"))
            if not self._gone.is_set():
                await self._parts.put(None)

    async def answer(self) -> httpx.Response:
        """Wait for the beginning of the answer."""
        try:
            start = await self._begun
        except BaseException:
            await self.aclose()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=self)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            raise OSError("nobody reads the answer")
        if message["type"] == "http.response.start":
            self._begun.set_result(message)
        elif message["type"] == "http.response.body" and message.get("body"):
            await self._parts.put(bytes(message["body"]))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def aclose(self) -> None:
        """Tell the application that nobody reads on, and end it if it does not."""
        self._gone.set()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
