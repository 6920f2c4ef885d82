"""The sweep in a process that is killed: what is needed stays, and the next one finishes."""

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.router.adapters.clock import SystemClock
from pierhead.router.adapters.logs import FileLogs
from pierhead.router.adapters.sql.ledger import SqlStore
from pierhead.router.domain.retention import Retention
from pierhead.router.ports.store import Ledger
from pierhead.router.services.garbage import Garbage
from pierhead.server.blobs import BlobStore

NEEDED, NOT_NEEDED = 40, 400
AGED = datetime.now(UTC) - timedelta(days=3)


def swept(folder: Path, store: SqlStore) -> Garbage:
    return Garbage(
        store=store,
        blobs=BlobStore(folder, new_id=lambda: "u_00000000"),
        logs=FileLogs(folder / "logs"),
        clock=SystemClock(),
        retention=Retention(),
    )


async def once(folder: Path) -> None:
    store = await SqlStore.open(folder / "router.db")
    try:
        await swept(folder, store).once()
    finally:
        await store.close()


def fill(folder: Path) -> list[str]:
    """Make blobs that nobody was told of for days; return those that will be linked."""
    digests = []
    store = BlobStore(folder, new_id=lambda: "u_00000000")
    for number in range(NEEDED + NOT_NEEDED):
        data = str(number).encode()
        file = store.path(digest_of(data))
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        os.utime(file, (AGED.timestamp(), AGED.timestamp()))
        digests.append(str(digest_of(data)))
    return digests[:NEEDED]


@pytest.mark.parametrize("after_files", [1, 57, 200, 399])
async def test_a_sweep_that_is_killed_loses_nothing_and_the_next_one_ends_it(
    tmp_path: Path, after_files: int
) -> None:
    needed = fill(tmp_path)
    store = await SqlStore.open(tmp_path / "router.db")

    def link(ledger: Ledger) -> None:
        for digest in needed:
            # Not of a manifest, but somebody was told of them just now.
            ledger.link_blob("web", digest, "", datetime.now(UTC))

    await store.write(link)
    await store.close()
    files, trash = tmp_path / "blobs" / "sha256", tmp_path / "trash"
    command = [sys.executable, __file__, str(tmp_path), str(after_files)]
    ended = await asyncio.to_thread(subprocess.run, command, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert any(trash.iterdir())

    await once(tmp_path)

    left = {f"sha256:{file.name}" for file in files.glob("*/*")}
    assert left == set(needed)
    assert not any(trash.iterdir())


def die_after(count: int) -> None:
    """Let this process be killed in the middle of taking files away."""
    taken = iter(range(count))
    rename = Path.replace

    def counted(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        if next(taken, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return renamed

    Path.replace = counted  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    die_after(int(sys.argv[2]) - 1)
    asyncio.run(once(Path(sys.argv[1])))
