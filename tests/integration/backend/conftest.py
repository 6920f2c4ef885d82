"""A backend with a real buildah, and contexts whose base is one busybox binary."""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pierhead.protocol.plan import Plan
from pierhead.protocol.result import StopProof
from pierhead.runner.adapters.buildah import BuildahBackend
from pierhead.runner.ports import Backend, Broken, BuildOrder, Built, Group

BASE = """\
FROM scratch AS base
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
"""
_numbers: Iterator[int] = itertools.count(1)


async def call(*command: str | Path) -> str:
    """Run a program that must succeed, and return what it wrote."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def write_context(folder: Path, dockerfile: str) -> Path:
    folder.mkdir(parents=True)
    shutil.copy("/bin/busybox", folder / "busybox")
    (folder / "Dockerfile").write_text(dockerfile)
    return folder


@dataclass
class Attempt:
    """One build under way: what it wrote, and which processes it has."""

    backend: Backend
    order: BuildOrder
    output: bytearray = field(default_factory=bytearray)
    groups: list[Group] = field(default_factory=list)
    said: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    async def run(self) -> Built | Broken:
        try:
            return await self.backend.build(self.order, self._take, self.groups.append)
        finally:
            self.ended = True
            self.said.set()

    async def until(self, text: bytes) -> None:
        """Wait until the build has written something."""
        while text not in self.output:
            assert not self.ended, self.output.decode()
            self.said.clear()
            await self.said.wait()

    async def stop(self) -> StopProof:
        return await self.backend.stop(self.order)

    def _take(self, data: bytes) -> None:
        self.output += data
        self.said.set()


class Bench:
    """Makes attempts below one folder."""

    def __init__(self, folder: Path, isolates: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir()
        shutil.copy(isolates, folder / "state")  # tried once for all tests
        self.backend = BuildahBackend(folder / "state", slots=2, memory_bytes=None)
        self.attempts: list[Attempt] = []

    def attempt(
        self,
        steps: str,
        *,
        plan: Plan | None = None,
        slot: int = 0,
        project: str = "web",
        preview: bool = False,
        memory_bytes: int | None = 256 * 2**20,
        secrets: Mapping[str, bytes] | None = None,
    ) -> Attempt:
        name = f"b_{os.getpid()}x{next(_numbers)}.1"  # others may run the same tests
        work = self.folder / "work" / name
        write_context(work / "context", BASE + steps)
        order = BuildOrder(
            name=name,
            slot=slot,
            project=project,
            preview=preview,
            context=work / "context",
            work=work,
            plan=plan or Plan(),
            memory_bytes=memory_bytes,
            secrets=secrets or {},
        )
        self.attempts.append(Attempt(self.backend, order))
        return self.attempts[-1]

    async def log_of(self, steps: str, *, plan: Plan | None = None) -> str:
        """Build, and return what the steps wrote; the build must succeed."""
        attempt = self.attempt(steps, plan=plan)
        built = await attempt.run()
        proof = await attempt.stop()
        assert isinstance(built, Built), (built, attempt.output.decode())
        assert proof.clean, proof
        return attempt.output.decode()


@pytest.fixture(scope="session")
def isolates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a runner notes when it has seen that this machine isolates."""
    state = tmp_path_factory.mktemp("isolates")
    found = asyncio.run(BuildahBackend(state, slots=1, memory_bytes=None).probe())
    assert found.isolation == "full", found
    return state / "isolates.json"


@pytest.fixture
async def bench(tmp_path: Path, isolates: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, isolates)
    yield made
    for attempt in made.attempts:
        await attempt.stop()
