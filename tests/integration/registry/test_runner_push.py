"""A runner's push over a network that cuts: to our registry, and to docker-registry."""

import asyncio
import contextlib
import hashlib
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from benchmarks.registry_push_pull import reference
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.image import read_image
from pierhead.protocol.result import CacheUse
from pierhead.runner.adapters import push
from pierhead.runner.adapters.push import Pusher
from pierhead.runner.ports import Built
from tests.integration.registry.conftest import Served, serving
from tests.integration.registry.image import MANIFEST, Image, digest_of, image

SHOP = "acme/shop"
PIECE_BYTES = 64 * 1024


@dataclass(slots=True)
class Cutting:
    """A proxy that ends a connection after so many bytes of requests, as often as it is told."""

    upstream: tuple[str, int]
    cuts: list[int]  # bytes after which each of the next connections ends
    port: int = 0
    carried: int = 0
    open: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self._connected()
        answers = asyncio.create_task(self._copy(there, writer, None))
        limit = self.cuts.pop(0) if self.cuts else None
        await self._copy(reader, back, limit)
        answers.cancel()
        for side in (writer, back):
            side.transport.abort() if limit else side.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect so that little is under way: what a cut loses was carried, and has to be again.

        Otherwise that is some megabytes, when the other side is late to read.
        """
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_BYTES)
        await asyncio.get_running_loop().sock_connect(connection, self.upstream)
        return await asyncio.open_connection(sock=connection)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
    ) -> None:
        done = 0
        with contextlib.suppress(OSError):
            while (limit is None or done < limit) and (piece := await reader.read(PIECE_BYTES)):
                done += len(piece)
                writer.write(piece)
                await writer.drain()
        if writer.transport.get_extra_info("peername")[1] == self.upstream[1]:
            self.carried += done


@asynccontextmanager
async def cutting(port: int, cuts: list[int]) -> AsyncIterator[Cutting]:
    proxy = Cutting(("127.0.0.1", port), cuts)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


@asynccontextmanager
async def registry(kind: str, served: Served, folder: Path) -> AsyncIterator[int]:
    """Give the port of a registry."""
    if kind == "ours":
        yield served.port
        return
    async with reference(folder) as client:
        assert client.base_url.port is not None
        yield client.base_url.port


def built(folder: Path, layer: bytes) -> tuple[Built, Image]:
    """Return an image with a layer of these bytes, as a backend leaves it."""
    small = image()
    manifest = json.loads(small.manifest)
    manifest["layers"][0].update(digest=digest_of(layer), size=len(layer))
    written = json.dumps(manifest).encode()
    whole = Image(layer, small.config, written)
    found = read_image(written, small.config)
    layout = whole.write(folder)
    return Built(layout=layout, image=found, cache=CacheUse(), peak_memory_bytes=None), whole


@pytest.mark.parametrize("kind", ["ours", "docker-registry"])
async def test_a_push_that_is_cut_goes_on_where_it_ended(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(push, "AT_ONCE", 1)
    what, whole = built(tmp_path / "layout", os.urandom(1 << 20) * 40)
    cuts = [300_000, 9_000_000, 5_000_000, 5_000_000, 8_000_000]
    async with (
        registry(kind, served, tmp_path) as port,
        cutting(port, cuts) as proxy,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{proxy.port}",
            headers={"Authorization": "Bearer shop"},
            timeout=60,
        ) as client,
    ):
        pusher = Pusher(client, SHOP)
        await pusher.push(what)
        assert proxy.cuts == []
        back = await client.get(f"/v2/{SHOP}/blobs/{digest_of(whole.layer)}")
        assert hashlib.sha256(back.content).hexdigest() == digest_of(whole.layer)[7:]
        wanted = {"Accept": MANIFEST}
        kept = await client.get(f"/v2/{SHOP}/manifests/{whole.digest}", headers=wanted)
        assert kept.content == whole.manifest
    if kind == "ours":
        assert proxy.carried <= len(whole.layer) * 1.05


async def test_a_registry_without_room_is_told_of_at_once(tmp_path: Path, tiny_disk: Path) -> None:
    what, _ = built(tmp_path / "layout", os.urandom(1 << 20) * 9)
    async with serving(tmp_path, tiny_disk) as served, served.client("shop") as client:
        async with asyncio.timeout(push.PATIENCE_SECONDS / 4):
            with pytest.raises(Unavailable) as refused:
                await Pusher(client, SHOP).push(what)
    assert refused.value.problem.slug == "storage-full"
    assert "could not store it: " in str(refused.value)


@pytest.mark.parametrize("arrived", [0, 1, 2, 4_000_000])
async def test_whatever_had_arrived_the_rest_is_all_that_is_sent(
    served: Served, tmp_path: Path, arrived: int
) -> None:
    """The registry's own count is exact where `Range: 0-0` says nothing or one byte."""
    layer = os.urandom(1 << 20) * 4
    async with served.client("shop") as client:
        begun = await client.post(f"/v2/{SHOP}/blobs/uploads/")
        url = begun.headers["location"]
        if arrived:
            await client.patch(url, content=layer[:arrived])
        pusher = Pusher(client, SHOP)
        _, offset = await pusher._resume(f"http://{served.host}{url}")
        assert offset == arrived


async def test_a_part_fits_through_a_proxy_with_a_limit() -> None:
    assert push.PART_BYTES <= 16 * 1024 * 1024
