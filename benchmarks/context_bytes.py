"""What an upload puts on the wire: 600 MB with one changed file, and 1 GiB with five cuts.

A proxy in between counts all bytes that the client sends, headers and descriptions included.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.packing import make_tree
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.pack import pack
from pierhead.protocol.client.upload import upload
from tests.acceptance.stage import stage

FILES = 88_000
LARGE_BYTES, CUTS = 2**30, 5
SHARE, TIMES = 0.01, 1.05


@dataclass(slots=True)
class Counting:
    """Passes bytes on, counts those that the client sends, and cuts where it is told to."""

    upstream_port: int
    sent: int = 0
    cuts: list[int] = field(default_factory=list)  # at so many bytes, the next first
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        back = asyncio.create_task(_pump(up_reader, writer))
        try:
            while data := await reader.read(256 * 1024):
                self.sent += len(data)
                if self.cuts and self.sent >= self.cuts[0]:
                    del self.cuts[0]
                    return
                up_writer.write(data)
                await up_writer.drain()
        except OSError:
            pass
        finally:
            back.cancel()
            up_writer.transport.abort()
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(256 * 1024):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def counting(upstream_port: int) -> AsyncIterator[Counting]:
    proxy = Counting(upstream_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    plane = folder / "plane"
    plane.mkdir()
    async with (
        stage(plane) as opened,
        counting(opened.port) as proxy,
        opened.client(proxy.port) as client,
    ):
        share = await one_changed(client, proxy, folder, say)
        times = await with_cuts(client, proxy, folder, say)
    return [
        Figure(metric="one_changed_share", value=share, goal=SHARE),
        Figure(metric="cuts_ratio", value=times, goal=TIMES),
    ]


async def one_changed(
    client: RouterClient, proxy: Counting, folder: Path, say: Callable[[str], None]
) -> float:
    root = await asyncio.to_thread(make_tree, folder / "tree", FILES)
    first = await asyncio.to_thread(pack, root)
    await upload(client, "bench", first)
    say(f"first: {first.files} files, {first.size_bytes} bytes; sent {proxy.sent}")
    (root / "pkg3" / "lib3" / "changed.js").write_text("changed\n")
    before = proxy.sent
    second = await asyncio.to_thread(pack, root)
    done = await upload(client, "bench", second)
    say(f"one changed: sent {proxy.sent - before}, {done.sent_bytes} of it content")
    return (proxy.sent - before) / second.size_bytes


async def with_cuts(
    client: RouterClient, proxy: Counting, folder: Path, say: Callable[[str], None]
) -> float:
    root = folder / "large"
    root.mkdir()
    with (root / "random").open("wb") as file:
        for _ in range(LARGE_BYTES // 2**24):
            file.write(os.urandom(2**24))
    packed = await asyncio.to_thread(pack, root)
    before = proxy.sent
    step = LARGE_BYTES // (CUTS + 1)
    proxy.cuts = [before + step * number + 12_345 for number in range(1, CUTS + 1)]
    await upload(client, "bench", packed)
    assert not proxy.cuts
    say(f"1 GiB, {CUTS} cuts: sent {proxy.sent - before}")
    return (proxy.sent - before) / packed.size_bytes
