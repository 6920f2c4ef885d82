"""The folder of one attempt on the runner's disk: the context comes into it, and the log."""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from pierhead.protocol.errors import IntegrityError, Unavailable
from pierhead.protocol.plan import ContextRef
from pierhead.protocol.problem import problem
from pierhead.runner.adapters.spool import LogSpool
from pierhead.runner.adapters.unpack import unpack
from pierhead.runner.domain.failure import Disk
from pierhead.runner.ports import Hold
from pierhead.runner.removal import remove_tree

# Calls one after the other that bring nothing: the router may be restarted in between.
CUTS_MAX: Final = 60
AGAIN_SECONDS: Final = 1.0
# zstd makes incompressible bytes a little longer, and each frame has a header.
_MORE_BYTES: Final = 1024 * 1024


class DiskWorkspace:
    """The folder of one attempt, below the runner's state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        remove_tree(folder)  # of an attempt of this name nothing can be wanted any more
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def folder(self) -> Path:
        """Where the backend may work."""
        return self._folder

    async def fetch(self, hold: Hold, wanted: ContextRef) -> Path:
        """Fetch, unpack and check the context; return its folder."""
        packed, root = self._folder / "context.tar.zst", self._folder / "context"
        await fetch(hold.context, wanted, packed)
        unwanted = threading.Event()
        working = asyncio.ensure_future(asyncio.to_thread(unpack, packed, root, wanted, unwanted))
        try:
            await asyncio.shield(working)
        finally:
            # A thread goes on after whoever waits for it is gone, and this one fills the disk.
            unwanted.set()
            await asyncio.wait({working})
            working.exception()  # it was asked to end, or it is raised above
        packed.unlink()
        return root

    def disk(self) -> Disk:
        """Look at the disk that it is on."""
        return disk_of(self._folder)

    def spool(self, hold: Hold) -> LogSpool:
        """Begin the log, beside the folder: it outlives what the backend clears away."""
        return LogSpool(self._folder.with_name(self._folder.name + ".log"), hold)

    async def remove(self) -> None:
        """Remove all of it."""
        await asyncio.to_thread(remove_tree, self._folder)
        self._folder.with_name(self._folder.name + ".log").unlink(missing_ok=True)


def disk_of(folder: Path) -> Disk:
    """Look at the disk that a folder is on."""
    found = shutil.disk_usage(folder)
    return Disk(str(folder), found.free, found.total)


async def fetch(
    read: Callable[[int], AsyncIterator[bytes]], wanted: ContextRef, file: Path
) -> None:
    """Fetch a packed context, going on after cuts.

    Raises:
        IntegrityError: it is longer than what was promised can be.
        Unavailable: it was cut too often.
    """
    limit = wanted.unpacked_bytes + wanted.unpacked_bytes // 100 + _MORE_BYTES
    size, cuts, whole = 0, 0, False
    with file.open("wb") as output:
        while not whole:
            before = size
            with contextlib.suppress(Unavailable):
                async for chunk in read(size):
                    output.write(chunk)
                    size += len(chunk)
                    if size > limit:
                        detail = f"the context does not end after {limit} bytes"
                        raise IntegrityError(problem("digest-mismatch", detail))
                whole = True
            if not whole and size == before:
                cuts += 1
                await asyncio.sleep(AGAIN_SECONDS)
            if cuts > CUTS_MAX:
                raise Unavailable(problem("dependency-unavailable", "the context does not come"))
