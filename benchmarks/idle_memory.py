"""What stays in memory between two builds: the router, the runner and the runner's helper.

VmRSS of each process, after one build has gone through it.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import Figure
from tests.acceptance.stage import finished, hello, stage, submit

GOALS_MB = {"router_mb": 100.0, "runner_mb": 60.0, "helper_mb": 20.0}


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
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


def children(pid: int) -> list[int]:
    """Return all processes below one."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            found += [child, *children(child)]
    return found


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} is gone")
