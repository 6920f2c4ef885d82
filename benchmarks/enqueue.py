"""From the submit of a build to its plan in an idle runner, over HTTP, against one committed row.

The runner is this process, which holds an acquire as a real one does; so both numbers have the
same client in them, and the difference is what the router does.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks.figure import Figure, percentile, spread
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.lease import Acquire, Grant
from pierhead.protocol.plan import Plan, Submit
from pierhead.protocol.result import Envelope, Failure
from pierhead.protocol.runner import AddRunner, Capabilities, Enroll, SessionRequest
from tests.acceptance.stage import Context, Service, Stage, free_port, pack, stage, upload

ROUNDS = 300
WARM_UP = 20
TIMES_BASELINE = 3.0
BROKEN = Envelope(outcome="failed", failure=Failure(cause="command", message="a benchmark"))
CAPABILITIES = Capabilities(
    platforms=("linux/amd64",),
    backend="none",
    isolation="full",
    networks=("default", "none"),
    cpus=2,
    memory_bytes=2**31,
)


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    baseline = await commit_rows(folder)
    say(spread("POST that commits a row", baseline))
    plane = folder / "plane"
    plane.mkdir()
    async with stage(plane) as opened:
        enqueued = await enqueue(opened)
    say(spread("submit to plan in the runner", enqueued))
    goal = TIMES_BASELINE * percentile(baseline, 99) * 1000
    return [Figure(metric="p99_ms", value=percentile(enqueued, 99) * 1000, goal=goal)]


async def commit_rows(folder: Path) -> list[float]:
    """Return how long each POST to the baseline took."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.baseline", str(port), str(folder / "rows.db")]
    server = Service(command, {}, folder / "baseline.log")
    server.start()
    samples = []
    row = {"project": "hello", "key": "k" * 20}
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await until_it_answers(client, row)
            for _ in range(ROUNDS + WARM_UP):
                began = time.perf_counter()
                (await client.post("/rows", json=row)).raise_for_status()
                samples.append(time.perf_counter() - began)
    finally:
        await server.stop()
    return samples[WARM_UP:]


async def until_it_answers(client: httpx.AsyncClient, row: dict[str, str]) -> None:
    for _ in range(200):
        with contextlib.suppress(httpx.ConnectError):
            await client.post("/rows", json=row)
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the baseline does not start")


async def enqueue(opened: Stage) -> list[float]:
    """Return how long each build took from its submit to its runner."""
    context = pack({"Dockerfile": b"FROM scratch\n"})
    async with opened.client() as owner:
        code = (await owner.add_runner(AddRunner(name="bench"))).code
        secret = parse_join_code(code).secret
        enroll = Enroll(secret=secret, nonce="bench", name="bench")
        credential = (await owner.enroll(enroll)).credential
        await upload(owner, context, "hello")
        async with RouterClient(opened.url, token=credential) as runner:
            return await rounds(opened, owner, runner, context)


async def rounds(
    opened: Stage, owner: RouterClient, runner: RouterClient, context: Context
) -> list[float]:
    request = SessionRequest(process="bench", boot_id="bench", capabilities=CAPABILITIES)
    session = (await runner.open_session(request)).session_id
    samples = []
    for number in range(ROUNDS + WARM_UP):
        waiting = asyncio.create_task(take(runner, session, number))
        await asyncio.sleep(0.01)  # so that the acquire is held when the build comes
        began = time.perf_counter()
        wanted = Submit(project="hello", plan=Plan(), context=context.reference, key=f"k{number}")
        submitted = asyncio.create_task(owner.submit(wanted))
        grant, ended = await waiting
        samples.append(ended - began)
        await submitted
        async with RouterClient(opened.url, token=grant.token) as attempt:
            await attempt.report(grant.build_id, grant.fence, BROKEN)
    return samples[WARM_UP:]


async def take(runner: RouterClient, session: str, turn: int) -> tuple[Grant, float]:
    """Hold an acquire until it brings a build; return it and when it came."""
    wanted = Acquire(session_id=session, request_id=f"r{turn}", turn=turn, slots=1)
    while not (grants := (await runner.acquire(wanted)).grants):
        pass
    return grants[0], time.perf_counter()
