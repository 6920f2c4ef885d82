"""A build by a runner, cache warm and push included, against the bare backend on the same files.

Both build the same folder after the same change of one file, in turn, on the same machine; both
push into the same registry. The bare backend is buildah with the isolation that runners use.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import Figure, percentile, spread
from tests.acceptance.stage import BUSYBOX, Stage, stage

ROUNDS = 7
FILES, FILE_BYTES = 300, 16 * 1024
TIMES_BARE, MORE_SECONDS = 1.1, 1.0
DOCKERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN i=0; while [ $i -lt 200 ]; do echo $i > /layer-$i; i=$((i+1)); done
COPY source /source
RUN find /source -type f | sort | xargs cat | sha256sum > /sum
"""


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    source = make_source(folder / "source")
    plane = folder / "plane"
    plane.mkdir()
    async with stage(plane) as opened:
        await opened.join("bench")
        try:
            bare, remote = await asyncio.to_thread(rounds, opened, source, folder)
        finally:
            buildah(folder, "rm", "--all")
            buildah(folder, "rmi", "--all", "--force")
    say(spread("bare: buildah bud and push", bare))
    say(spread("remote: pierhead build", remote))
    goal = TIMES_BARE * percentile(bare, 50) + MORE_SECONDS
    return [Figure(metric="p50_seconds", value=percentile(remote, 50), goal=goal)]


def make_source(folder: Path) -> Path:
    (folder / "source").mkdir(parents=True)
    shutil.copy(BUSYBOX, folder / "busybox")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    for number in range(FILES):
        text = f"{number} ".encode() * FILE_BYTES
        (folder / "source" / f"file-{number}").write_bytes(text[:FILE_BYTES])
    return folder


def rounds(opened: Stage, source: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Return how long each of both took; the first of each warms its cache."""
    bare, remote = [], []
    for number in range(ROUNDS + 1):
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
