"""The registry in a process of its own, behind the one address of the control plane."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pierhead.protocol.registry import NewRegistry
from tests.acceptance.stage import Service, Stage, eventually, stage
from tests.integration.mirror.others import strange_registry
from tests.integration.registry.conftest import push_blob, push_image
from tests.integration.registry.image import digest_of, image
from tests.integration.router.stage import tiny_image

LARGE = os.urandom(1 << 20) * 8


@dataclass(frozen=True, slots=True)
class Both:
    """A control plane and the process of its registry."""

    stage: Stage
    registry: Service

    def client(self) -> httpx.AsyncClient:
        """Return a client with a single connection, so that all requests take the same one."""
        return httpx.AsyncClient(
            base_url=self.stage.url,
            headers={"Authorization": f"Bearer {self.stage.token}"},
            limits=httpx.Limits(max_connections=1),
            timeout=60,
        )


def holders(both: Both, port: int) -> list[str]:
    """Return which processes have the connection that comes from a port."""
    inodes = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        ends = [int(words[at].partition(":")[2], 16) for at in (1, 2)]
        if ends == [both.stage.port, port]:
            inodes.append(f"socket:[{words[9]}]")
    found = []
    for name, pid in (("plane", both.stage.plane.pid), ("registry", both.registry.pid)):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{number}") in inodes:
                    found.append(name)
    return found


async def holder(both: Both, answer: httpx.Response) -> str:
    """Return which process has the connection on which an answer came, and it alone.

    Whoever passed it on may have it a moment longer.
    """
    port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]

    async def only_one() -> str | None:
        found = holders(both, port)
        return found[0] if len(found) == 1 else None

    return await eventually(only_one, within=60, what="one process has the connection")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Both]:
    async with stage(folder) as opened:
        yield Both(opened, await opened.start_registry())


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    async with running(tmp_path) as opened:
        yield opened


async def test_one_connection_goes_to_and_fro_with_its_requests(both: Both) -> None:
    async with both.client() as client:
        pushed = await push_blob(client, "shop", LARGE)
        assert (pushed.status_code, await holder(both, pushed)) == (201, "registry")
        whole = await client.get(f"/v2/shop/blobs/{digest_of(LARGE)}")
        assert (whole.content == LARGE, await holder(both, whole)) == (True, "registry")
        # Not for the registry: the connection goes back, with the request.
        projects = await client.get("/api/projects")
        assert (projects.status_code, await holder(both, projects)) == (200, "plane")
        # There it stays: the control plane answers for the registry too.
        listed = await client.get("/v2/_catalog")
        assert (listed.status_code, await holder(both, listed)) == (200, "plane")


async def test_images_of_other_registries_come_by_the_registrys_process(both: Both) -> None:
    async with strange_registry() as other, both.client() as client:
        other.images["me/base"] = tiny_image("base")
        async with both.stage.client() as owner:
            await owner.add_registry(NewRegistry(host=other.host, plain_http=True))
        path = f"/v2/me/base/manifests/latest?ns={other.host}"
        found = await client.get(path)
        assert (found.content, await holder(both, found)) == (
            other.images["me/base"].manifest,
            "registry",
        )


async def test_an_image_is_the_same_whichever_process_one_asks(both: Both) -> None:
    async with both.client() as client:
        await push_image(client, "shop", image(), to="v1")
        there = await client.get("/v2/shop/manifests/v1")
        assert (there.content, await holder(both, there)) == (image().manifest, "registry")
    await both.registry.stop()
    async with both.client() as client:
        assert (await client.get("/v2/shop/manifests/v1")).content == image().manifest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_push_goes_on_when_the_registrys_process_was_restarted(
    both: Both, number: signal.Signals
) -> None:
    async with both.client() as client:
        url = (await client.post("/v2/shop/blobs/uploads/")).headers["location"]
        await client.patch(url, content=LARGE[:3_000_000])
        await both.registry.stop(number)
        # Nobody is there: the control plane answers by itself.
        told = await again(client, url)
        assert told.headers["upload-offset"] == "3000000"
        await client.patch(url, content=LARGE[3_000_000:5_000_000])
        both.registry.start()
        await both.stage.registry_listens()
    async with both.client() as client:
        done = await client.put(url, content=LARGE[5_000_000:], params={"digest": digest_of(LARGE)})
        assert done.status_code == 201
        assert (await client.get(f"/v2/shop/blobs/{digest_of(LARGE)}")).content == LARGE


async def again(client: httpx.AsyncClient, url: str) -> httpx.Response:
    """Ask once more if the connection was that of a process that is gone."""
    try:
        return await client.get(url)
    except httpx.TransportError:
        return await client.get(url)


async def test_a_request_that_comes_in_pieces_finds_its_process(both: Both) -> None:
    port = both.stage.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    token = f"Authorization: Bearer {both.stage.token}\r\n\r\n"
    writer.write(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n" + token.encode())
    assert b"200" in await reader.readline()
    await reader.readuntil(b"\r\n\r\n{}")
    for piece in (b"G", b"ET ", b"/", b"api/projects HTTP/1.1\r\nHost: x\r\n" + token.encode()):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.05)
    assert b"200" in await reader.readline()
    writer.close()


async def test_a_second_process_on_the_same_folder_is_refused(both: Both) -> None:
    data = str(both.stage.folder / "data")
    second = await asyncio.to_thread(both.stage.run, "serve", "--only", "registry", "--data", data)
    assert second.returncode == 3
    assert "a registry (process" in second.stderr
    assert "hint:" in second.stderr


async def test_without_a_control_plane_it_says_what_to_start(tmp_path: Path) -> None:
    alone = Stage(tmp_path, 1)
    said = await asyncio.to_thread(alone.run, "serve", "--only", "registry")
    assert said.returncode == 3
    assert "hint: start it first: pierhead serve" in said.stderr
