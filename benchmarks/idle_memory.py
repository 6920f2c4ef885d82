"""What stays in memory between two builds: the router, the runner, its helper, and the gate.

VmRSS of each process, after one build has gone through it, and a request through the gate.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.processes import children, command, resident_mb
from tests.acceptance.stage import finished, hello, stage, submit

GOALS_MB = {"router_mb": 100.0, "runner_mb": 60.0, "helper_mb": 20.0}
GATE_MB = 25.0


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    roles, gate = folder / "roles", folder / "gate"
    for place in (roles, gate):
        place.mkdir()
    return [*await of_roles(roles, say), await of_gate(gate)]


async def of_gate(folder: Path) -> Figure:
    async with stage(folder, tls=True) as opened:
        await opened.start_registry()
        async with opened.secure_client() as owner:
            await owner.projects()
            below = children(opened.plane.pid)
            [gate] = [pid for pid in below if "pierhead.server.gate" in command(pid)]
            return Figure(metric="gate_mb", value=resident_mb(gate), goal=GATE_MB)


async def of_roles(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    async with stage(folder) as opened:
        runner = await opened.join("bench")
        async with opened.client() as owner:
            build = await submit(owner, hello(), key="one")
            view = await finished(owner, build.id)
        assert view.state == "succeeded", view
        say(f"built by {view.runner}: {view.state}")
        [helper] = [pid for pid in children(runner.pid) if "keeper" in command(pid)]
        pids = dict(zip(GOALS_MB, (opened.plane.pid, runner.pid, helper), strict=True))
        for name, pid in pids.items():
            say(f"{name}: {command(pid)[:90]}")
        return [
            Figure(metric=name, value=resident_mb(pid), goal=GOALS_MB[name])
            for name, pid in pids.items()
        ]
