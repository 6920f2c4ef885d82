"""How long a heartbeat takes while four blobs are pushed at once.

With the registry inside of the control plane and in a process of its own, blobs of 1 GB; and in a
process of its own by TLS, with smaller ones, since who pushes has to encrypt on the same machine.
The runner that sends the heartbeats is this process; each push is a process of its own.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.enqueue import CAPABILITIES
from benchmarks.figure import Figure, percentile, spread
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.lease import Acquire, Grant, Heartbeat
from pierhead.protocol.runner import AddRunner, Enroll, SessionRequest
from tests.acceptance.stage import Stage, stage, submit
from tests.contexts import described

PUSHES = 4
SIZE_BYTES = 1_000_000_000
TLS_SIZE_BYTES = 250_000_000
EVERY_SECONDS = 0.05
GOAL_MS = 100.0


@dataclass(frozen=True, slots=True)
class Way:
    """Which process answers pushes, and whether they come by TLS."""

    metric: str
    own: bool
    size: int = SIZE_BYTES
    tls: bool = False

    def url(self, opened: Stage) -> str:
        return opened.secure_url if self.tls else opened.url

    def client(self, opened: Stage, token: str) -> RouterClient:
        ca = opened.ca.read_text() if self.tls else None
        return RouterClient(self.url(opened), token=token, ca=ca)


WAYS = (
    Way("p99_own_process_ms", own=True),
    Way("p99_own_process_tls_ms", own=True, tls=True, size=TLS_SIZE_BYTES),
    Way("p99_one_process_ms", own=False),
)


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    figures = []
    for way in WAYS:
        place = folder / way.metric
        place.mkdir()
        async with stage(place, tls=way.tls) as opened:
            if way.own:
                await opened.start_registry()
            samples = await heartbeats(opened, way)
        say(spread(way.metric, samples))
        value = percentile(samples, 99) * 1000
        figures.append(Figure(metric=way.metric, value=value, goal=GOAL_MS))
    return figures


async def heartbeats(opened: Stage, way: Way) -> list[float]:
    """Hold a build and renew its lease while others push; return the seconds that each took."""
    async with opened.client() as owner:
        code = (await owner.add_runner(AddRunner(name="bench"))).code
        enroll = Enroll(secret=parse_join_code(code).secret, nonce="bench", name="bench")
        credential = (await owner.enroll(enroll)).credential
        async with way.client(opened, credential) as runner:
            grant = await held(owner, runner)
        async with way.client(opened, grant.token) as holder:
            await renewed(holder, grant)  # the connection is there
            pushes = [asyncio.create_task(push(opened, way, number)) for number in range(PUSHES)]
            samples = []
            while not all(task.done() for task in pushes):
                samples.append(await renewed(holder, grant))
                await asyncio.sleep(EVERY_SECONDS)
            await asyncio.gather(*pushes)
    return samples


async def held(owner: RouterClient, runner: RouterClient) -> Grant:
    request = SessionRequest(process="bench", boot_id="bench", capabilities=CAPABILITIES)
    session = (await runner.open_session(request)).session_id
    await submit(owner, described({"Dockerfile": b"FROM scratch\n"}), key="bench")
    acquired = await runner.acquire(Acquire(session_id=session, request_id="one", turn=1, slots=1))
    return acquired.grants[0]


async def renewed(holder: RouterClient, grant: Grant) -> float:
    began = time.perf_counter()
    await holder.heartbeat(grant.build_id, grant.fence, Heartbeat())
    return time.perf_counter() - began


async def push(opened: Stage, way: Way, number: int) -> None:
    address = opened.url.partition("://")[2]
    what = [address, opened.token, "bench", str(way.size), str(number)]
    what += [str(opened.ca)] if way.tls else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.push_client", *what
    )
    assert await process.wait() == 0
