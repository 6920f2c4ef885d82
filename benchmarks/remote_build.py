"""A build by a runner, cache warm and push included, against the bare backend on the same files.

Both build the same folder after the same change of one file, in turn, on the same machine; both
push into the same registry. The bare backend is buildah with the isolation that runners use.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figure import Figure, percentile, spread
from tests.acceptance.stage import BUSYBOX, Stage, stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A folder of so many files, one of which changes, and what building it elsewhere may cost."""

    name: str
    files: int
    file_bytes: int
    rounds: int
    times_bare: float
    more_seconds: float


CASES = (
    Case(name="few", files=300, file_bytes=16384, rounds=7, times_bare=1.1, more_seconds=1.0),
    Case(name="many", files=20_000, file_bytes=2048, rounds=4, times_bare=1.05, more_seconds=0.5),
)
DOCKERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN i=0; while [ $i -lt 200 ]; do echo $i > /layer-$i; i=$((i+1)); done
COPY source /source
RUN find /source -type f | sort | xargs cat | sha256sum > /sum
"""


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    figures = []
    for case in CASES:
        place = folder / case.name
        place.mkdir()
        figures.append(await compare(case, place, say))
    return figures


async def compare(case: Case, folder: Path, say: Callable[[str], None]) -> Figure:
    source = make_source(case, folder / "source")
    plane = folder / "plane"
    plane.mkdir()
    async with stage(plane) as opened:
        await opened.join("bench")
        try:
            bare, remote = await asyncio.to_thread(rounds, case, opened, source)
        finally:
            buildah(folder, "rm", "--all")
            buildah(folder, "rmi", "--all", "--force")
    say(spread(f"{case.files} files, bare: buildah bud and push", bare))
    say(spread(f"{case.files} files, remote: pierhead build", remote))
    goal = case.times_bare * percentile(bare, 50) + case.more_seconds
    return Figure(metric=f"{case.name}_p50_seconds", value=percentile(remote, 50), goal=goal)


def make_source(case: Case, folder: Path) -> Path:
    (folder / "source").mkdir(parents=True)
    shutil.copy(BUSYBOX, folder / "busybox")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    for number in range(case.files):
        place = folder / "source" / f"part-{number // 500}"
        place.mkdir(exist_ok=True)
        text = f"{number} ".encode() * case.file_bytes
        (place / f"file-{number}").write_bytes(text[: case.file_bytes])
    return folder


def rounds(case: Case, opened: Stage, source: Path) -> tuple[list[float], list[float]]:
    """Return how long each of both took; the first of each warms its cache."""
    bare, remote = [], []
    folder = source.parent
    for number in range(case.rounds + 1):
        (source / "source" / "changed").write_text(f"{number}\n")
        began = time.perf_counter()
        build_bare(opened, source, folder)
        between = time.perf_counter()
        built = opened.run("build", "-q", str(source))
        remote.append(time.perf_counter() - between)
        bare.append(between - began)
        assert built.returncode == 0, built.stderr
    return bare[1:], remote[1:]


def build_bare(opened: Stage, source: Path, folder: Path) -> None:
    isolated = ["--isolation", "oci", "--runtime", "/usr/sbin/runc"]
    buildah(folder, "bud", "--layers", *isolated, "--tag", "bare", str(source))
    login = ["--authfile", str(opened.login / "config.json"), "--tls-verify=false"]
    buildah(folder, "push", *login, "bare", f"docker://127.0.0.1:{opened.port}/bare:latest")


def buildah(folder: Path, *arguments: str) -> None:
    store = ["--root", str(folder / "root"), "--runroot", str(folder / "run")]
    done = subprocess.run(
        ["buildah", *store, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
