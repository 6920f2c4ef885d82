"""What the kernel says of processes: who started whom, their memory and their CPU."""

import contextlib
import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return all processes below one."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            found += [child, *children(child)]
    return found


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} is gone")


def own_seconds(pid: int) -> float:
    """Return the CPU seconds of a process alone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, of its children now, and of those that have ended."""
    total = own_seconds(pid)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total += (int(fields[13]) + int(fields[14])) / TICKS
    return total + sum(own_seconds(child) for child in children(pid))
