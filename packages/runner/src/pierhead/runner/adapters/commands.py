"""The commands of one build, one after the other, and what is watched while they run.

Each ends by itself, with its time, when the disk runs low, or with the task that waits for it. What
it says goes to the log without the secrets that it may know.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from pierhead.protocol.redact import Patterns, Redactor
from pierhead.runner.adapters.cgroup import PIDS_MAX, Cgroup, MemoryWatch
from pierhead.runner.adapters.process import kill_group, start_in
from pierhead.runner.adapters.workspace import disk_of
from pierhead.runner.domain.failure import Disk, Ending
from pierhead.runner.domain.progress import Progress
from pierhead.runner.domain.voice import Voices
from pierhead.runner.ports import BuildOrder, Group, KeepGroup, LogSink

_READ_BYTES: Final = 64 * 1024
# Over two reads, too: these are the words by which domain/failure.py asks for the disk.
_FULL: Final = re.compile(rb"no space left on device|disk quota exceeded", re.IGNORECASE)
_FULL_BYTES: Final = 32
# A disk that takes 1 GB a second is stopped from 512 MiB to some 400.
LOOK_SECONDS: Final = 0.1
NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})


@contextlib.contextmanager
def watching(cgroup: Cgroup | None) -> Iterator[MemoryWatch | None]:
    """Watch the memory of a cgroup, if there is one."""
    watch = MemoryWatch(cgroup) if cgroup else None
    try:
        yield watch
    finally:
        if watch is not None:
            watch.close()


class Commands:
    """The commands of one build."""

    def __init__(
        self,
        order: BuildOrder,
        cgroup: Cgroup | None,
        watch: MemoryWatch | None,
        progress: Progress,
        log: LogSink,
        keep: KeepGroup,
        voices: Voices,
        hidden: Mapping[str, bytes],
    ) -> None:
        self._order = order
        self._voices = voices
        self._cgroup = cgroup
        self._watch = watch
        self._progress = progress
        self._log = log
        self._keep = keep
        self._disk: Disk | None = None
        self._disk_before = disk_of(order.work)
        self._floor: int | None = None
        self._crowded = False
        self._patterns = Patterns(hidden.values())
        self._until = asyncio.get_running_loop().time() + order.plan.timeout_seconds

    async def run(self, command: list[str], secrets: Mapping[str, bytes] = NOTHING) -> Ending:
        """Run a command to its end, or kill its group when the time or the task is over."""
        entrances = self._cgroup.entrances if self._cgroup else ()
        process = await start_in(entrances, command, has_input=bool(secrets))
        folders = self._cgroup.places if self._cgroup else ()
        group = Group(name=self._order.name, pid=process.pid, cgroups=tuple(map(str, folders)))
        self._keep(group)
        watching = asyncio.create_task(self._look(process.pid))
        timed_out = None
        try:
            async with asyncio.timeout_at(self._until):
                await asyncio.gather(_give(process, secrets), self._read(process))
                await process.wait()
        except TimeoutError:
            timed_out = self._order.plan.timeout_seconds
        finally:
            watching.cancel()
            if process.returncode is None:
                kill_group(process.pid)
                await asyncio.shield(process.wait())
        assert process.returncode is not None
        self._progress.finish()
        return Ending(
            code=process.returncode,
            progress=self._progress,
            out_of_memory=self._watch is not None and self._watch.stopped_something(),
            memory_bytes=self._order.memory_bytes,
            timed_out_seconds=timed_out,
            disk=self._disk,
            disk_before=self._disk_before,
            disk_floor_bytes=self._floor,
            processes_max=PIDS_MAX if self._was_crowded() else None,
        )

    def _was_crowded(self) -> bool:
        if self._cgroup is not None and self._cgroup.is_crowded():
            self._crowded = True
        return self._crowded

    async def _look(self, pid: int) -> None:
        """Stop the command before it has the whole disk: the router's database may be on it."""
        while True:
            try:
                disk = disk_of(self._order.work)
            except FileNotFoundError:
                kill_group(pid)  # somebody removed the folder: nothing can come of it
                return
            if disk.is_low:
                self._disk, self._floor = disk, disk.kept_bytes
                kill_group(pid)
                return
            self._was_crowded()
            await asyncio.sleep(LOOK_SECONDS)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        redactor, before = Redactor(self._patterns), b""
        while data := await process.stdout.read(_READ_BYTES):
            self._take(redactor.feed(self._voices.feed(data)))
            if _FULL.search(before + data) and self._floor is None:
                # Looked at now: what filled the disk is removed as soon as the step has failed.
                self._disk = disk_of(self._order.work)
            before = data[-_FULL_BYTES:]
        self._take(redactor.feed(self._voices.finish()))
        self._take(redactor.finish())

    def _take(self, data: bytes) -> None:
        self._progress.feed(data)
        self._log(data)


async def _give(process: asyncio.subprocess.Process, secrets: Mapping[str, bytes]) -> None:
    """Write secrets to the command's input: never to its command line or environment."""
    if process.stdin is None:
        return
    with contextlib.suppress(ConnectionError):  # it ended before it read; its output says why
        process.stdin.write(msgspec.json.encode(secrets))
        await process.stdin.drain()
    process.stdin.close()
