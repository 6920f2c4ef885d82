"""A folder of 50,000 files into what is sent of it the first time, against `tarfile`.

Both read every file and make its digest, and neither compresses: threads that compress would hide
what the rest costs. `tarfile` writes a tar into a hash; ours applies an ignore file, describes the
tree, and reads what is missing, which is all. Only the processor is counted,
in turn, on the same files.
"""

import hashlib
import os
import random
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from benchmarks.figure import Figure, percentile
from pierhead.protocol.client.known import Known
from pierhead.protocol.client.pack import pack

FILES, MEAN_BYTES = 50_000, 6_500
ROUNDS = 7  # the least of each is compared: what else the machine does only adds
TIMES = 1 / 6
IGNORE = "**/node_modules/.cache\n.git\n*.log\n**/*.pyc\n**/__pycache__\ndist\nbuild/*.tmp\n"


class _Hash:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return len(data)


async def measure(folder: Path, say: Callable[[str], None]) -> list[Figure]:
    root = make_tree(folder / "tree", FILES)
    theirs, ours, again = list[float](), list[float](), list[float]()
    known = Known.load(root, folder / "cache")
    pack(root, known=known)
    known.save(root, folder / "cache")
    for _ in range(ROUNDS):
        theirs.append(cpu_seconds(lambda: with_tarfile(root)))
        ours.append(cpu_seconds(lambda: pack(root)))
        again.append(cpu_seconds(lambda: once_more(root, folder / "cache")))
    for name, samples in (("tarfile", theirs), ("ours", ours), ("unchanged", again)):
        say(f"{name}: {', '.join(f'{seconds:.2f}' for seconds in samples)} s of CPU")
    best = percentile(theirs, 0)
    return [
        Figure(metric="cpu_ratio", value=percentile(ours, 0) / best, goal=TIMES),
        Figure(metric="cpu_ratio_unchanged", value=percentile(again, 0) / best, goal=TIMES / 2),
    ]


def once_more(root: Path, cache: Path) -> None:
    known = Known.load(root, cache)
    pack(root, known=known)
    known.save(root, cache)


def with_tarfile(root: Path) -> None:
    sink = cast("BinaryIO", _Hash())
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root, arcname=".", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def make_tree(root: Path, files: int) -> Path:
    """Make a tree as package managers leave it: many small files, deep."""
    rng = random.Random(1)
    noise = Path("/usr/bin/python3").read_bytes() + os.urandom(1)
    for number in range(files // 40):
        place = root / f"pkg{number % 97}" / f"lib{number // 97 % 50}" / f"mod{number}"
        place.mkdir(parents=True)
        for name in range(40):
            size, begin = int(rng.expovariate(1 / MEAN_BYTES)), rng.randrange(len(noise) - 100_000)
            (place / f"file{name}.js").write_bytes(noise[begin : begin + size])
    (root / ".dockerignore").write_text(IGNORE)
    (root / "Dockerfile").write_text("FROM scratch\nCOPY . /src\n")
    return root
