"""The registry in a process of its own, by TLS: what the gate carries, and what its end does."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pierhead.protocol.client.client import RouterClient
from tests.acceptance.stage import Service, Stage, eventually, stage
from tests.integration.registry.conftest import push_blob
from tests.integration.registry.image import digest_of, image
from tests.sight import said_of, words_in

LARGE = os.urandom(1 << 20) * 16
GATE = "pierhead.server.gate"


@dataclass(frozen=True, slots=True)
class Three:
    """A control plane, the process of its registry, and the gate between them and the world."""

    stage: Stage
    registry: Service

    def client(self) -> httpx.AsyncClient:
        """Return a client with a single connection by TLS, so that all requests take it."""
        return httpx.AsyncClient(
            base_url=self.stage.secure_url,
            headers={"Authorization": f"Bearer {self.stage.token}"},
            limits=httpx.Limits(max_connections=1, keepalive_expiry=60),
            verify=ssl.create_default_context(cafile=str(self.stage.ca)),
            timeout=60,
        )

    def owner(self) -> RouterClient:
        return self.stage.secure_client()

    @property
    def gate(self) -> int | None:
        """The process of the gate that the control plane has started."""
        listed = Path(f"/proc/{self.stage.plane.pid}/task").glob("*/children")
        for pid in (int(word) for file in listed for word in words_in(file).split()):
            if GATE in said_of(pid, "cmdline"):
                return pid
        return None

    async def is_at_rest(self) -> bool:
        """Say whether the control plane has nothing more to do for its start."""
        async with self.owner() as owner:
            runners = (await owner.capabilities()).runners
        return any(runner.name == "here" and runner.online for runner in runners)

    async def through_the_registry(self, before: dict[str, tuple[int, int]]) -> None:
        """Wait until its process has written all of it: the kernel counts after it has carried."""

        async def counted() -> bool:
            return self.moved()["registry"][1] - before["registry"][1] >= len(LARGE)

        await eventually(counted, within=60, what="the registry's process has written all of it")

    def moved(self) -> dict[str, tuple[int, int]]:
        """Return how many bytes each process has read and written so far, files included."""
        pids = {"plane": self.stage.plane.pid, "registry": self.registry.pid}
        return {name: counted(pid) for name, pid in pids.items()}


def counted(pid: int) -> tuple[int, int]:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    said = dict(line.split(": ") for line in lines)
    return int(said["rchar"]), int(said["wchar"])


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    async with stage(tmp_path, tls=True) as opened:
        three = Three(opened, await opened.start_registry())
        await eventually(three.is_at_rest, within=120, what="the builder here has begun")
        yield three


async def test_a_push_and_a_pull_by_tls_are_the_registrys_work(three: Three) -> None:
    async with three.client() as client:
        before = three.moved()
        assert (await push_blob(client, "shop", LARGE)).status_code == 201
        await three.through_the_registry(before)
        pushed = three.moved()
        whole = await client.get(f"/v2/shop/blobs/{digest_of(LARGE)}")
        assert whole.content == LARGE
        await three.through_the_registry(pushed)
        pulled = three.moved()
        for was, now in ((before, pushed), (pushed, pulled)):
            for way in (0, 1):
                assert now["plane"][way] - was["plane"][way] < len(LARGE) // 4
        # The same connection goes back with a request that is not for the registry, and answers.
        assert (await client.get("/api/projects")).status_code == 200
        assert (await client.get(f"/v2/shop/blobs/{digest_of(LARGE)}")).content == LARGE


async def test_skopeo_pushes_and_pulls_by_tls(three: Three, tmp_path: Path) -> None:
    layout, back = image().write(tmp_path / "image"), tmp_path / "back"
    trust = tmp_path / "trust"
    trust.mkdir()
    (trust / "ca.crt").write_bytes(three.stage.ca.read_bytes())
    there = f"docker://127.0.0.1:{three.stage.port}/shop:v1"
    login = ["--authfile", str(three.stage.login / "config.json")]
    before = three.moved()
    for words in (
        ["--dest-cert-dir", str(trust), f"oci:{layout}", there],
        ["--src-cert-dir", str(trust), there, f"oci:{back}"],
    ):
        copying = await asyncio.create_subprocess_exec(
            *("skopeo", "copy", "--quiet", *login, *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await copying.communicate()
        assert copying.returncode == 0, said.decode()
    assert (back / "blobs/sha256" / image().digest[7:]).read_bytes() == image().manifest
    assert three.gate is not None, three.stage.logs()
    assert three.moved()["registry"] > before["registry"]


async def test_the_rest_is_answered_while_the_registrys_process_stands_still(three: Three) -> None:
    async with three.client() as client, three.owner() as owner:
        assert (await client.get("/v2/")).status_code == 200
        os.kill(three.registry.pid, signal.SIGSTOP)
        try:
            waiting = asyncio.create_task(client.get("/v2/_catalog"))
            for _ in range(20):
                assert (await owner.projects()).projects == ()
            assert not waiting.done()
        finally:
            os.kill(three.registry.pid, signal.SIGCONT)
        assert (await waiting).status_code == 200


async def uploading(client: httpx.AsyncClient) -> "asyncio.Task[httpx.Response]":
    """Begin a request whose body does not end."""
    begun = asyncio.Event()
    url = (await client.post("/v2/shop/blobs/uploads/")).headers["location"]

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield LARGE[: 1 << 16]
            begun.set()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(client.patch(url, content=endless()))
    await begun.wait()
    return task


@pytest.mark.parametrize("which", ["gate", "registry"])
async def test_who_is_killed_ends_what_it_carried_and_comes_again(three: Three, which: str) -> None:
    async with three.client() as client:
        task = await uploading(client)
        gate = three.gate
        assert gate is not None, three.stage.logs()
        if which == "gate":
            os.kill(gate, signal.SIGKILL)
        else:
            await three.registry.kill()
        with pytest.raises(httpx.TransportError):
            await asyncio.wait_for(task, 60)
    if which == "registry":
        async with three.client() as client:  # the control plane answers by itself
            assert (await push_blob(client, "shop", LARGE)).status_code == 201
        three.registry.start()

    async def is_the_registrys_work() -> bool:
        with suppress(httpx.TransportError, FileNotFoundError):
            before = three.moved()
            async with three.client() as client:
                assert (await push_blob(client, "shop", LARGE)).status_code == 201
            after = three.moved()
            return after["registry"][1] - before["registry"][1] >= len(LARGE)
        return False

    await eventually(is_the_registrys_work, within=120)
    assert (three.gate == gate) is (which == "registry")


async def test_a_push_by_tls_outlives_the_control_plane_and_the_gate_ends_after_it(
    three: Three,
) -> None:
    async with three.client() as client:
        url = (await client.post("/v2/shop/blobs/uploads/")).headers["location"]
        await client.patch(url, content=LARGE[:1_000_000])
        gate = three.gate
        assert await three.stage.plane.stop(within=120) == 0
        # The connection is the registry's: nothing of it was in the process that has ended.
        digest = digest_of(LARGE)
        done = await client.put(url, content=LARGE[1_000_000:], params={"digest": digest})
        assert done.status_code == 201

    async def has_ended() -> bool:
        return not Path(f"/proc/{gate}").exists()

    await eventually(has_ended, within=60, what="the gate ends")


async def test_there_is_no_gate_before_it_is_of_use(tmp_path: Path) -> None:
    async with stage(tmp_path, tls=True) as opened:
        alone = Three(opened, opened.plane)
        async with alone.client() as client:
            assert (await push_blob(client, "shop", LARGE)).status_code == 201
        assert alone.gate is None
