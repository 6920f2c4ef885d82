"""A proxy that cuts replies: the upstream has answered, and the caller never hears of it.

That is the fault that makes things happen twice, or get lost, where calls cannot be replayed. It
speaks no HTTP, but it recognises the first line of a request, which is enough to choose by path:
our clients send one request at a time on each connection.
"""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

REQUEST = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (\S+) HTTP/1\.[01]\r\n")
CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply that the upstream began to send."""

    request: str  # "POST /api/builds"
    at: float  # on the monotonic clock
    cut: bool


@dataclass(slots=True)
class FaultProxy:
    """Forwards to an upstream, except for replies that `should_cut` picks."""

    upstream_port: int
    should_cut: Callable[[str], bool] = lambda _request: False
    replies: list[Reply] = field(default_factory=list)
    port: int = 0

    def cuts(self, request: str) -> list[Reply]:
        """Return the replies to such a request that were cut."""
        return [reply for reply in self.replies if reply.cut and reply.request == request]

    def gaps_after_cuts(self, request: str) -> list[float]:
        """Return how many seconds after each cut reply the repeat was answered."""
        mine = [reply for reply in self.replies if reply.request == request]
        return [after.at - cut.at for cut, after in itertools.pairwise(mine) if cut.cut]

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either side ends it."""
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, (reader, writer), upstream)
        try:
            await connection.forward()
        finally:
            for side in (writer, upstream[1]):
                side.transport.abort()


@dataclass(slots=True)
class _Connection:
    proxy: FaultProxy
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    request: str = ""
    answered: bool = True

    async def forward(self) -> None:
        ways = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self) -> None:
        while chunk := await self.client[0].read(CHUNK_BYTES):
            if found := REQUEST.match(chunk):
                self.request = b" ".join(found.groups()).decode()
                self.answered = False
            self.upstream[1].write(chunk)
            await self.upstream[1].drain()

    async def _replies(self) -> None:
        while chunk := await self.upstream[0].read(CHUNK_BYTES):
            if not self.answered:
                self.answered = True
                cut = self.proxy.should_cut(self.request)
                self.proxy.replies.append(Reply(self.request, time.monotonic(), cut))
                if cut:
                    return
            self.client[1].write(chunk)
            await self.client[1].drain()


@asynccontextmanager
async def fault_proxy(
    upstream_port: int, should_cut: Callable[[str], bool]
) -> AsyncIterator[FaultProxy]:
    """Run a proxy on a free port of loopback."""
    proxy = FaultProxy(upstream_port, should_cut)
    server = await asyncio.start_server(proxy.serve_one, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
