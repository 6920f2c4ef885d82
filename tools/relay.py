"""Carry connections between loopback in one network namespace and loopback in another.

Two of these, joined by a Unix socket, which no network namespace keeps apart:
`relay.py SOCKET PORT` where the server is, `relay.py PORT SOCKET` where the clients are. So an
engine in a namespace of its own reaches this machine's registry under its usual name.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CHUNK_BYTES: Final = 256 * 1024


async def connect(address: str) -> Streams:
    """Connect to a port of loopback or to a Unix socket."""
    if address.isdigit():
        return await asyncio.open_connection("127.0.0.1", int(address))
    return await asyncio.open_unix_connection(address)


async def listen(
    address: str, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> asyncio.Server:
    """Listen on a port of loopback or on a Unix socket."""
    if address.isdigit():
        return await asyncio.start_server(serve, "127.0.0.1", int(address))
    return await asyncio.start_unix_server(serve, address)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction; its end is passed on as an end."""
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


async def relay(source: str, target: str) -> None:
    """Carry every connection to `source` on to `target`, until this process is ended."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await connect(target)
        try:
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        except OSError:
            pass  # one side is gone, and with it the connection
        finally:
            writer.transport.abort()
            far_writer.transport.abort()

    server = await listen(source, serve)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], sys.argv[2]))
