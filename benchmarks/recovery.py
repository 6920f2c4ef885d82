"""How soon a build goes on after a fault: a lost answer to its runner, or a runner that was killed.

A grant whose answer was cut comes again with the repeat of the request; a runner that is started
again proves by its new session that its old attempt is gone. Neither waits for a lease to run out.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import Figure, percentile, spread
from pierhead.protocol.build import CancelRequest
from pierhead.protocol.client.upload import upload
from pierhead.protocol.plan import Plan
from tests.acceptance.proxy import FaultProxy, fault_proxy
from tests.acceptance.stage import (
    Stage,
    eventually,
    finished,
    hello,
    stage,
    submit,
)

CUTS = 30
KILLS = 5
ACQUIRE = "POST /api/runners/acquire"
SLOW = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "sleep", "300"]
"""


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    cuts, kills = folder / "cuts", folder / "kills"
    for place in (cuts, kills):
        place.mkdir()
    regranted = await cut_replies(cuts)
    say(spread("answered again after a cut", regranted))
    restarted = await kill_runners(kills)
    say(spread("granted again after a kill", restarted))
    return [
        Figure(metric="regrant_p99_seconds", value=percentile(regranted, 99), goal=1.0),
        Figure(metric="restart_p99_seconds", value=percentile(restarted, 99), goal=2.0),
    ]


async def cut_replies(folder: Path) -> list[float]:
    """Cut every second answer to a runner, and return how long each took to come again."""
    asked = 0

    def every_second(request: str) -> bool:
        nonlocal asked
        asked += request == ACQUIRE
        return request == ACQUIRE and asked % 2 == 0

    async with stage(folder) as on, fault_proxy(on.port, every_second) as proxy:
        await on.join("bench", port=proxy.port)
        return await builds(on, proxy)


async def builds(on: Stage, proxy: FaultProxy) -> list[float]:
    context, number = hello(), 0
    async with on.client() as owner:
        await upload(owner, "hello", context)
        while len(proxy.cuts(ACQUIRE)) < CUTS:
            number += 1
            view = await submit(owner, context, key=f"key-{number}")
            ended = await finished(owner, view.id)
            assert (ended.state, ended.attempts) == ("succeeded", 1), ended
    return proxy.gaps_after_cuts(ACQUIRE)


async def kill_runners(folder: Path) -> list[float]:
    """Kill a runner while it builds, start it, and return when it has its build again."""
    took = []
    async with stage(folder) as on:
        runner = await on.join("bench")
        async with on.client() as owner:
            for number in range(KILLS):
                plan = Plan(no_cache=True)
                view = await submit(owner, hello(SLOW), key=f"slow-{number}", plan=plan)

                async def builds_at(build_id: str = view.id) -> bool:
                    return (await owner.build(build_id)).phase == "building"

                async def again(build_id: str = view.id) -> bool:
                    return (await owner.build(build_id)).attempts == 2

                await eventually(builds_at, within=30)
                await runner.kill()
                began = time.monotonic()
                await asyncio.to_thread(runner.start)
                await eventually(again, within=30)
                took.append(time.monotonic() - began)
                await owner.cancel(view.id, CancelRequest())
                await finished(owner, view.id)
    return took
