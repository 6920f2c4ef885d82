"""Limits and peaks of one build, on cgroup v2 and on v1.

A build has a folder of its own with two below it: `main` for the backend and `run` for the
containers of its steps. On v2 a folder with limits may hold no processes itself, hence the two.
"""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_OURS: Final = "pierhead"
_CONTROLLERS_V1: Final = ("memory", "pids", "cpu")
# What to write into which file, on v1 and on v2.
_THAWING: Final = {"freezer.state": "THAWED", "cgroup.freeze": "0"}
# Processes of a build's steps, and how many buildah and runc may have beside them: whatever a step
# does, they can end it and say why.
PIDS_MAX: Final = 4096
PIDS_OF_BUILDER: Final = 512
PERIOD_US: Final = 100_000  # the kernel's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """The cgroup of one build; on v1 one folder in each hierarchy."""

    name: str  # "pierhead/b_7f3k.1", below each root
    roots: tuple[Path, ...]  # of the hierarchies
    unified: bool

    @property
    def of_steps(self) -> str:
        """Where the containers of a build's steps are, as the build sees it.

        It sees its own `run` as the root of each hierarchy (isolation.py), so that it cannot change
        its limits, which are one above.
        """
        return "/step"

    @property
    def entrances(self) -> tuple[Path, ...]:
        """The folders that the backend's process belongs to."""
        return tuple(root / self.name / "main" for root in self.roots)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The build's folder in each hierarchy."""
        return tuple(root / self.name for root in self.roots)

    @property
    def places(self) -> tuple[Path, ...]:
        """The build's folder in every hierarchy there is: runc makes one in each, on v1."""
        if self.unified:
            return self.folders
        return tuple(root / self.name for root in _all_v1())

    def peak_memory(self) -> int | None:
        """Return the most memory that the build had at one time, in bytes."""
        file = "memory.peak" if self.unified else "memory.max_usage_in_bytes"
        return _number(self._memory() / file)

    def peak_memory_of_steps(self) -> int | None:
        """Return the most memory that the steps alone had at one time, in bytes."""
        file = "memory.peak" if self.unified else "memory.max_usage_in_bytes"
        return _number(self._memory() / "run" / file)

    def memory_limit(self) -> int | None:
        """Return the limit that the kernel has noted, in bytes."""
        return _number(self._memory() / ("memory.max" if self.unified else "memory.limit_in_bytes"))

    def processes_limit(self) -> int | None:
        """Return how many processes the kernel lets the steps have."""
        return _number((self.folders[0] if self.unified else self.folders[1]) / "run" / "pids.max")

    def is_crowded(self) -> bool:
        """Say whether the steps have, or had, as many processes as they may have."""
        folder = (self.folders[0] if self.unified else self.folders[1]) / "run"
        # Linux before 6.11 does not keep the peak: there it has to be seen while it is one.
        most = _number(folder / "pids.peak") or _number(folder / "pids.current") or 0
        return most >= PIDS_MAX

    def processes(self) -> list[int]:
        """Return all live processes in it."""
        found: set[int] = set()
        # A folder can go while this looks: runc removes those of a step that ends.
        for path in (path for folder in self.places for path, _, _ in os.walk(folder)):
            with contextlib.suppress(OSError):
                found.update(map(int, Path(path, "cgroup.procs").read_text().split()))
        return sorted(pid for pid in found if is_alive(pid))

    def thaw(self) -> None:
        """Let go on what something has frozen: until then nothing ends it."""
        for folder in self.places:
            for path, _, files in os.walk(folder):
                for name in _THAWING.keys() & {*files}:
                    with contextlib.suppress(OSError):
                        Path(path, name).write_text(_THAWING[name])

    async def remove(self) -> None:
        """Remove its folders; those with processes stay, and `leftovers` names them."""
        for attempt in range(20):
            for folder in self.places:
                _remove_tree(folder)
            if not self.leftovers():
                return
            # The kernel lets a folder go only when the last dead process was collected.
            await asyncio.sleep(0.02 * (attempt + 1))

    def leftovers(self) -> tuple[str, ...]:
        """Return the folders that are still there."""
        return tuple(str(folder) for folder in self.places if folder.exists())

    def _memory(self) -> Path:
        return self.folders[0]


class MemoryWatch:
    """Knows whether a build's memory limit stopped something, from when it is made until asked.

    On v2 the build's folder counts for everything below it. On v1 the count is in the folder of the
    step's container, which runc removes; so the kernel is asked to say it at once (Documentation/
    admin-guide/cgroup-v1/memory.rst, 10). Not `failcnt`: it also counts pages that were let go.
    """

    def __init__(self, cgroup: Cgroup) -> None:
        self._folder = cgroup.folders[0]
        self._hit = False
        self._event = None if cgroup.unified else os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if self._event is not None:
            with open(self._folder / "memory.oom_control") as control:
                order = f"{self._event} {control.fileno()}"
                (self._folder / "cgroup.event_control").write_text(order)

    def stopped_something(self) -> bool:
        """Say whether the limit was hit so that a process was killed."""
        if self._event is None:
            return _counter(self._folder / "memory.events", "oom_kill") > 0
        with contextlib.suppress(BlockingIOError):
            self._hit = os.eventfd_read(self._event) > 0
        return self._hit

    def close(self) -> None:
        """Stop watching."""
        if self._event is not None:
            os.close(self._event)
            self._event = None


def available() -> bool:
    """Say whether there are cgroups that can be used."""
    return bool(_hierarchies()[0])


def open_cgroup(
    name: str,
    *,
    memory_bytes: int | None,
    cpu_weight: int | None,
    cpus: float | None = None,
) -> Cgroup:
    """Make the cgroup of a build, with its limits; half a core is 0.5 `cpus`."""
    cgroup = cgroup_of(name)
    for folder in cgroup.places:
        (folder / "main").mkdir(parents=True, exist_ok=True)
        (folder / "run").mkdir(exist_ok=True)
    if cgroup.unified:
        for folder in (_ROOT, _ROOT / _OURS, cgroup.folders[0]):
            (folder / "cgroup.subtree_control").write_text("+memory +pids +cpu")
        _limit_v2(cgroup.folders[0], memory_bytes, cpu_weight, cpus)
    else:
        _limit_v1(cgroup, memory_bytes, cpu_weight, cpus)
    return cgroup


def cgroup_of(name: str) -> Cgroup:
    """Return the cgroup of a build, whether or not it is there."""
    roots, unified = _hierarchies()
    return Cgroup(name=f"{_OURS}/{name}", roots=roots, unified=unified)


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that ended and was not collected yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _hierarchies() -> tuple[tuple[Path, ...], bool]:
    if (_ROOT / "cgroup.controllers").exists():
        return (_ROOT,), True
    found = tuple(_ROOT / name for name in _CONTROLLERS_V1 if (_ROOT / name).is_dir())
    return (found if len(found) == len(_CONTROLLERS_V1) else ()), False


def _limit_v2(
    folder: Path, memory_bytes: int | None, cpu_weight: int | None, cpus: float | None
) -> None:
    (folder / "pids.max").write_text(str(PIDS_MAX + PIDS_OF_BUILDER))
    (folder / "run" / "pids.max").write_text(str(PIDS_MAX))
    if memory_bytes is not None:
        (folder / "memory.max").write_text(str(memory_bytes))
        with contextlib.suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
    if cpu_weight is not None:
        (folder / "cpu.weight").write_text(str(cpu_weight))
    if cpus is not None:
        (folder / "cpu.max").write_text(f"{int(cpus * PERIOD_US)} {PERIOD_US}")


def _limit_v1(
    cgroup: Cgroup, memory_bytes: int | None, cpu_weight: int | None, cpus: float | None
) -> None:
    memory, pids, cpu = cgroup.folders
    cpuset = _ROOT / "cpuset" / cgroup.name
    for folder in (cpuset.parent, cpuset, cpuset / "run"):
        _inherit_cpuset(folder)
    (pids / "pids.max").write_text(str(PIDS_MAX + PIDS_OF_BUILDER))
    (pids / "run" / "pids.max").write_text(str(PIDS_MAX))
    with contextlib.suppress(OSError):
        (memory / "memory.use_hierarchy").write_text("1")
    if memory_bytes is not None:
        (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
    if cpu_weight is not None:
        (cpu / "cpu.shares").write_text(str(max(2, cpu_weight * 1024 // 100)))
    if cpus is not None:
        (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (cpu / "cpu.cfs_quota_us").write_text(str(int(cpus * PERIOD_US)))


def _inherit_cpuset(folder: Path) -> None:
    """On v1 a new cpuset is empty, and nothing may run in it or below it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        with contextlib.suppress(OSError):
            (folder / name).write_text((folder.parent / name).read_text())


def _all_v1() -> list[Path]:
    """Return every hierarchy: runc makes its folders in each. Some have a second name, a link.

    What systemd has made for a controller that the kernel has not is an empty folder.
    """
    return [root for root in sorted(_ROOT.iterdir()) if root.is_mount() and not root.is_symlink()]


def _remove_tree(folder: Path) -> None:
    """Remove empty cgroups from the leaves up; control files are not files to be unlinked."""
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _counter(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[:1] == [name])
