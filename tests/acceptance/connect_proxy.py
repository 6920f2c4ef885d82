"""A CONNECT proxy as offices have it: it wants a name and a password, and passes on bytes.

    python connect_proxy.py ADDRESS PORT USER:PASSWORD LOG

It notes each target in the log, and who came without the password. Anything but CONNECT is refused.
"""

import asyncio
import base64
import contextlib
import sys
from pathlib import Path

HEAD_BYTES_MAX = 16 * 1024


class Proxy:
    """Passes on what it is asked to."""

    def __init__(self, login: str, log: Path) -> None:
        self._expected = b"Basic " + base64.b64encode(login.encode())
        self._log = log

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *rest = head.split(b"\r\n")
        words = first.decode("latin-1").split()
        headers = dict(line.split(b": ", 1) for line in rest if b": " in line)
        said = {name.lower(): value for name, value in headers.items()}
        if words[0] != "CONNECT":
            self._note(f"refused {first.decode('latin-1')}")
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
        elif said.get(b"proxy-authorization") != self._expected:
            self._note(f"unknown {words[1]}")
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        else:
            self._note(f"connect {words[1]}")
            host, _, port = words[1].rpartition(":")
            upstream = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _both_ways((reader, writer), upstream)

    def _note(self, line: str) -> None:
        with self._log.open("a") as log:
            log.write(line + "\n")


async def _both_ways(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    ways = [asyncio.create_task(_pass(*way)) for way in ((one[0], other[1]), (other[0], one[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        other[1].close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()


async def main(address: str, port: str, login: str, log: str) -> None:
    """Serve until ended."""
    proxy = Proxy(login, Path(log))
    server = await asyncio.start_server(proxy.serve_one, address, int(port), limit=HEAD_BYTES_MAX)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
