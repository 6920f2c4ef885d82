"""How long a heartbeat takes while four blobs of 1 GB are pushed at once.

Once with the registry inside of the control plane, once in a process of its own. The runner that
sends the heartbeats is this process; each push is a process of its own.
"""

import asyncio
import sys
import time
from collections.abc import Callable
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
EVERY_SECONDS = 0.05
GOAL_MS = 100.0


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    figures = []
    for metric, own in (("p99_own_process_ms", True), ("p99_one_process_ms", False)):
        place = folder / metric
        place.mkdir()
        async with stage(place) as opened:
            if own:
                await opened.start_registry()
            samples = await heartbeats(opened)
        say(spread("own process" if own else "one process", samples))
        value = percentile(samples, 99) * 1000
        figures.append(Figure(metric=metric, value=value, goal=GOAL_MS))
    return figures


async def heartbeats(opened: Stage) -> list[float]:
    """Hold a build and renew its lease while others push; return the seconds that each took."""
    async with opened.client() as owner:
        code = (await owner.add_runner(AddRunner(name="bench"))).code
        enroll = Enroll(secret=parse_join_code(code).secret, nonce="bench", name="bench")
        credential = (await owner.enroll(enroll)).credential
        async with RouterClient(opened.url, token=credential) as runner:
            grant = await held(owner, runner)
        async with RouterClient(opened.url, token=grant.token) as holder:
            await renewed(holder, grant)  # the connection is there
            pushes = [asyncio.create_task(push(opened, number)) for number in range(PUSHES)]
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


async def push(opened: Stage, number: int) -> None:
    address = opened.url.partition("://")[2]
    what = [address, opened.token, "bench", str(SIZE_BYTES), str(number)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.push_client", *what
    )
    assert await process.wait() == 0
