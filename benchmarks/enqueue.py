"""From the submit of a build to its plan in an idle runner, over HTTP, against one committed row.

The runner is this process, which holds an acquire as a real one does; so both numbers have the
same client in them, and the difference is what the router does.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.figure import Figure, percentile, spread
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.upload import upload
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.lease import Acquire, Grant
from pierhead.protocol.plan import ContextRef, Plan, Submit
from pierhead.protocol.result import Envelope, Failure
from pierhead.protocol.runner import AddRunner, Capabilities, Enroll, SessionRequest
from tests.acceptance.stage import Service, Stage, stage
from tests.contexts import described
from tests.ports import free_port

ROUNDS = 300
WARM_UP = 20
TIMES_BASELINE = 3.0
ROW = {"project": "hello", "key": "k" * 20}
BROKEN = Envelope(outcome="failed", failure=Failure(cause="command", message="a benchmark"))
CAPABILITIES = Capabilities(
    platforms=("linux/amd64",),
    backend="none",
    isolation="full",
    networks=("default", "none"),
    cpus=2,
    memory_bytes=2**31,
)


@dataclass(frozen=True, slots=True)
class Samples:
    """How long each round took, in seconds. Each round measures both, so that both meet the same
    noise of the machine."""

    baseline: list[float] = field(default_factory=list)
    enqueued: list[float] = field(default_factory=list)


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    plane = folder / "plane"
    plane.mkdir()
    samples = Samples()
    async with rows(folder) as client, stage(plane) as opened:
        await enqueue(opened, client, samples)
    baseline, enqueued = samples.baseline[WARM_UP:], samples.enqueued[WARM_UP:]
    say(spread("POST that commits a row", baseline))
    say(spread("submit to plan in the runner", enqueued))
    goal = TIMES_BASELINE * percentile(baseline, 99) * 1000
    return [Figure(metric="p99_ms", value=percentile(enqueued, 99) * 1000, goal=goal)]


@contextlib.asynccontextmanager
async def rows(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the baseline: a POST that commits one row."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.baseline", str(port), str(folder / "rows.db")]
    server = Service(command, {}, folder / "baseline.log")
    server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await until_it_answers(client, ROW)
            yield client
    finally:
        await server.stop()


async def commit_row(client: httpx.AsyncClient) -> float:
    began = time.perf_counter()
    (await client.post("/rows", json=ROW)).raise_for_status()
    return time.perf_counter() - began


async def until_it_answers(client: httpx.AsyncClient, row: dict[str, str]) -> None:
    for _ in range(200):
        with contextlib.suppress(httpx.ConnectError):
            await client.post("/rows", json=row)
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the baseline does not start")


async def enqueue(opened: Stage, baseline: httpx.AsyncClient, samples: Samples) -> None:
    """Measure builds from their submit to their runner."""
    packed = described({"Dockerfile": b"FROM scratch\n"})
    async with opened.client() as owner:
        code = (await owner.add_runner(AddRunner(name="bench"))).code
        secret = parse_join_code(code).secret
        enroll = Enroll(secret=secret, nonce="bench", name="bench")
        credential = (await owner.enroll(enroll)).credential
        context = (await upload(owner, "hello", packed)).context
        async with RouterClient(opened.url, token=credential) as runner:
            await rounds(opened, owner, runner, context, baseline, samples)


async def rounds(
    opened: Stage,
    owner: RouterClient,
    runner: RouterClient,
    context: ContextRef,
    baseline: httpx.AsyncClient,
    samples: Samples,
) -> None:
    request = SessionRequest(process="bench", boot_id="bench", capabilities=CAPABILITIES)
    session = (await runner.open_session(request)).session_id
    for number in range(ROUNDS + WARM_UP):
        samples.baseline.append(await commit_row(baseline))
        waiting = asyncio.create_task(take(runner, session, number))
        await asyncio.sleep(0.01)  # so that the acquire is held when the build comes
        began = time.perf_counter()
        wanted = Submit(project="hello", plan=Plan(), context=context, key=f"k{number}")
        submitted = asyncio.create_task(owner.submit(wanted))
        grant, ended = await waiting
        samples.enqueued.append(ended - began)
        await submitted
        async with RouterClient(opened.url, token=grant.token) as attempt:
            await attempt.report(grant.build_id, grant.fence, BROKEN)


async def take(runner: RouterClient, session: str, turn: int) -> tuple[Grant, float]:
    """Hold an acquire until it brings a build; return it and when it came."""
    wanted = Acquire(session_id=session, request_id=f"r{turn}", turn=turn, slots=1)
    while not (grants := (await runner.acquire(wanted)).grants):
        pass
    return grants[0], time.perf_counter()
