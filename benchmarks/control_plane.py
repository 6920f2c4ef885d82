"""What a build elsewhere costs the control plane: its CPU, and how much its memory grows.

The image has about 200 MB: a root file system with Python, and what its steps compile and write in
some 40 s of a processor, as an everyday build does. What is moved costs the same however long the
build computes, so the seconds are printed, too. Everything moves once: the context is uploaded,
fetched by the runner, and the image is pushed. The CPU of the build is that of the runner and of
all that it started; the control plane has had a build before.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.processes import children, command, cpu_seconds, own_seconds, resident_mb
from tests.acceptance.stage import Stage, stage
from tools.base_image import base_image

PERCENT_MAX, GROWTH_MB_MAX = 3.0, 50.0
SAMPLE_SECONDS = 0.1
DOCKERFILE = """\
FROM scratch
ADD base.tar /
RUN python3 -m compileall -q -f /usr/lib/python3.11
RUN ["python3", "-c", "import hashlib as h; out = open('/data', 'w')\\n\
for n in range(1200000): out.write(h.pbkdf2_hmac('sha256', b'%d' % n, b'', 48).hex() + chr(10))"]
"""


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE)
    base_image(context / "base.tar")
    warm = folder / "warm"
    warm.mkdir()
    (warm / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    plane = folder / "plane"
    plane.mkdir()
    async with stage(plane) as opened:
        runner = await opened.join("bench")
        await asyncio.to_thread(opened.run, "build", "-q", str(warm))
        before_mb = total_mb(opened)
        plane_before, runner_before = control_cpu(opened), cpu_seconds(runner.pid)
        peak = asyncio.create_task(watch(opened))
        built = await asyncio.to_thread(opened.run, "build", "-q", str(context))
        assert built.returncode == 0, built.stderr
        peak.cancel()
        grown = await peak - before_mb
        spent = control_cpu(opened) - plane_before
        build = cpu_seconds(runner.pid) - runner_before
    say(
        f"control plane {spent:.2f} s of CPU, the build {build:.2f} s; {grown:.1f} MB grown at most"
    )
    return [
        Figure(metric="cpu_percent", value=100 * spent / build, goal=PERCENT_MAX),
        Figure(metric="grown_mb", value=grown, goal=GROWTH_MB_MAX),
    ]


async def watch(opened: Stage) -> float:
    """Return the most memory that the control plane had until this was cancelled, in MB."""
    most = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            most = max(most, total_mb(opened))
            await asyncio.sleep(SAMPLE_SECONDS)
    return most


def processes(opened: Stage) -> list[int]:
    """Return the control plane's processes, without the builder that it keeps on its machine."""
    found = [opened.plane.pid, *children(opened.plane.pid)]
    ours = [child for child in found if "pierhead.runner" in command(child)]
    builders = {pid for child in ours for pid in (child, *children(child))}
    return [pid for pid in found if pid not in builders]


def total_mb(opened: Stage) -> float:
    return sum(resident_mb(pid) for pid in processes(opened))


def control_cpu(opened: Stage) -> float:
    return sum(own_seconds(pid) for pid in processes(opened))
