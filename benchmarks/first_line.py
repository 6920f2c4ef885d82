"""How long until `pierhead build` says its first line, and `pierhead --help` its page.

Wall time of whole processes, from their start to the first byte that is seen; and their processor
time up to then, which a busy machine does not change as much.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import Figure, percentile, spread
from tests.acceptance.stage import BIN, BUSYBOX, HELLO

ROUNDS = 30
GOAL_MS = 200.0
PROCESSOR_GOAL_MS = 150.0


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    context = folder / "hello"
    context.mkdir()
    (context / "busybox").write_bytes(BUSYBOX.read_bytes())
    (context / "Dockerfile").write_text(HELLO)
    config = {"PIERHEAD_CONFIG": str(folder / "config"), "PIERHEAD_URL": "http://127.0.0.1:1"}
    figures = []
    for name, words in {"build": ["build", str(context)], "help": ["--help"]}.items():
        first_line(words, config)  # the first one compiles the modules
        samples = [first_line(words, config) for _ in range(ROUNDS)]
        say(spread(f"{name}, first line", [wall for wall, _ in samples]))
        say(spread(f"{name}, processor", [busy for _, busy in samples]))
        wall, busy = (percentile(times, 50) * 1000 for times in zip(*samples, strict=True))
        figures += [
            Figure(metric=f"{name}_first_line_p50_ms", value=wall, goal=GOAL_MS),
            Figure(metric=f"{name}_processor_p50_ms", value=busy, goal=PROCESSOR_GOAL_MS),
        ]
    return figures


def first_line(words: list[str], config: dict[str, str]) -> tuple[float, float]:
    """Start the command; return the seconds until it says something, and those of a processor."""
    reading, writing = os.pipe()
    began = time.perf_counter()
    environment = {**os.environ, **config}
    # As where people use it: modules are compiled by the first start and not by every one.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [BIN / "pierhead", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    os.read(reading, 1)
    took = time.perf_counter() - began
    busy = _processor_seconds(process.pid)
    os.close(reading)
    process.kill()
    process.wait()
    return took, busy


def _processor_seconds(pid: int) -> float:
    # The kernel's Documentation/scheduler/sched-stats.rst: the first number is the time on a
    # processor in nanoseconds. A command has one thread until its first line.
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
