"""What builds may use of a machine, as its owner says it: `--cpus 8 --memory 16G --disk 60G`."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.protocol.cli.speak import USAGE, fail, size
from pierhead.protocol.units import cores, kept_bytes

_UNITS: Final = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_SIZE: Final = re.compile(r"([0-9]{1,6})([KMGT])(i?B)?", re.IGNORECASE | re.ASCII)
MEMORY_MIN: Final = 256 * 1024**2
DISK_MIN: Final = 2 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """For each build: `slots` of them run at the same time and share what was allowed."""

    slots: int
    cpus: float | None
    memory_bytes: int | None
    disk_bytes: int | None

    @property
    def words(self) -> str:
        """The ceilings for people."""
        builds = "1 build at a time" if self.slots == 1 else f"{self.slots} builds at a time"
        each = "" if self.slots == 1 else " each"
        said = [
            f"{cores(self.cpus)}{each}" if self.cpus else "",
            f"{size(self.memory_bytes)} of memory{each}" if self.memory_bytes else "",
            f"{size(self.disk_bytes)} of disk{each}" if self.disk_bytes else "",
        ]
        return ", ".join([builds, *filter(None, said)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to be allowed."""

    cpus: int
    memory_bytes: int
    disk_bytes: int  # that builds may use at most


def machine_of(state: Path) -> Machine:
    """Look at this machine; `state`: where its runner keeps everything, or will."""
    while not state.exists():
        state = state.parent
    disk = shutil.disk_usage(state).total
    return Machine(
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_bytes=disk - kept_bytes(disk),
    )


def ceilings(
    machine: Machine, *, cpus: int | None, memory: str | None, disk: str | None, slots: int
) -> Ceilings:
    """Return what was said, for each of `slots` builds.

    Raises:
        CommandFailed: it is no size, too little to build with, or more than the machine has.
    """
    if cpus is not None and cpus > machine.cpus:
        has = f"{machine.cpus} core{'' if machine.cpus == 1 else 's'}"
        raise fail(f"--cpus {cpus}: this machine has {has}", f"--cpus {machine.cpus}", USAGE)
    return Ceilings(
        slots=slots,
        cpus=cpus / slots if cpus else None,
        memory_bytes=_share("--memory", memory, slots, MEMORY_MIN, machine.memory_bytes),
        disk_bytes=_share("--disk", disk, slots, DISK_MIN, machine.disk_bytes),
    )


def _share(option: str, said: str | None, slots: int, least: int, most: int) -> int | None:
    if said is None:
        return None
    found = _SIZE.fullmatch(said.strip())
    if found is None:
        raise fail(f"{option} is a size, not {said!r}", f"{option} 16G", USAGE)
    wanted = int(found[1]) * _UNITS[found[2].upper()]
    if wanted > most:
        text = f"{option} {said} is more than builds can have on this machine: {size(most)}"
        raise fail(text, f"{option} {max(1, most // _UNITS['M'])}M", USAGE)
    share = wanted // slots
    if share < least:
        each = "" if slots == 1 else f" for each of {slots} builds"
        raise fail(f"{option} {said} is too little{each}", f"at least {size(least)}{each}", USAGE)
    return share
