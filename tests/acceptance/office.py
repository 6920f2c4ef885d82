"""A proxy as they stand in offices and before small servers: small bodies, little patience.

It takes a request whole before it passes it on, and refuses one whose body is over 16 MiB. It gives
an answer on when it has all of it, unless the answer asks not to be held back (X-Accel-Buffering,
as nginx has it). It ends a connection on which nothing moved for 30 s, whoever was to speak.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11

READ_BYTES = 256 * 1024


@dataclass(slots=True)
class OfficeProxy:
    """Forwards to an upstream, and remembers what it saw."""

    upstream_port: int
    body_bytes_max: int = 16 * 1024 * 1024
    idle_seconds: float = 30.0
    port: int = 0
    largest: dict[str, int] = field(default_factory=dict)  # body in bytes, by method and path
    refused: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    streamed: list[str] = field(default_factory=list)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request after request."""
        side = _Side(h11.Connection(h11.SERVER), reader, writer, self.idle_seconds)
        try:
            while await self._serve_request(side):
                side.http.start_next_cycle()
        except (OSError, EOFError, TimeoutError, h11.ProtocolError):
            pass  # the caller is gone, or was silent for too long
        finally:
            writer.transport.abort()

    async def _serve_request(self, side: "_Side") -> bool:
        request = await side.event()
        if not isinstance(request, h11.Request):
            return False
        what = f"{request.method.decode()} {request.target.decode().partition('?')[0]}"
        body = bytearray()
        async for data in side.body():
            body += data
            if len(body) > self.body_bytes_max:
                self.refused.append(what)
                await side.send(h11.Response(status_code=413, headers=[("connection", "close")]))
                await side.send(h11.EndOfMessage())
                return False
        self.largest[what] = max(self.largest.get(what, 0), len(body))
        try:
            await self._pass_on(side, request, bytes(body), what)
        except TimeoutError:
            self.cut.append(what)
            return False
        return side.http.our_state is h11.DONE and side.http.their_state is h11.DONE

    async def _pass_on(self, side: "_Side", request: h11.Request, body: bytes, what: str) -> None:
        opened = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        upstream = _Side(h11.Connection(h11.CLIENT), *opened, self.idle_seconds)
        try:
            hop = {b"transfer-encoding", b"content-length", b"connection"}
            headers = [pair for pair in request.headers if pair[0] not in hop]
            headers += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
            await upstream.send(
                h11.Request(method=request.method, target=request.target, headers=headers)
            )
            await upstream.send(h11.Data(data=body))
            await upstream.send(h11.EndOfMessage())
            answer = await upstream.event()
            assert isinstance(answer, h11.Response)
            kept = [pair for pair in answer.headers if pair[0] != b"connection"]
            head = h11.Response(status_code=answer.status_code, headers=kept)
            if (b"x-accel-buffering", b"no") in [(k, v.lower()) for k, v in kept]:
                self.streamed.append(what)
                await side.send(head)
                async for data in upstream.body():
                    await side.send(h11.Data(data=data))
            else:
                held = [data async for data in upstream.body()]
                await side.send(head)
                for data in held:
                    await side.send(h11.Data(data=data))
            await side.send(h11.EndOfMessage())
        finally:
            opened[1].transport.abort()


@dataclass(slots=True)
class _Side:
    """One connection of the two."""

    http: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_seconds: float

    async def event(self) -> object:
        event: object = self.http.next_event()
        while event is h11.NEED_DATA:
            async with asyncio.timeout(self.idle_seconds):
                self.http.receive_data(await self.reader.read(READ_BYTES))
            event = self.http.next_event()
        return event

    async def body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self.event(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise EOFError

    async def send(self, event: h11.Event) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            async with asyncio.timeout(self.idle_seconds):
                await self.writer.drain()


@asynccontextmanager
async def office_proxy(upstream_port: int, **limits: float) -> AsyncIterator[OfficeProxy]:
    """Run such a proxy on a free port of loopback."""
    proxy = OfficeProxy(upstream_port, **limits)  # type: ignore[arg-type]
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve_one(reader, writer))
        serving.add(task)
        with contextlib.suppress(asyncio.CancelledError):
            await task
        serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in serving:
            task.cancel()
