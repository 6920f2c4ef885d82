"""What else runs on this machine: who has a port, and which reverse proxies there are."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN: Final = "0A"  # linux/net/tcp_states.h
PROXIES: Final = ("traefik", "caddy", "nginx", "haproxy", "apache2")


def listener_of(port: int) -> str | None:
    """Return the name of who listens on a port; "somebody" when it cannot be seen."""
    inodes = set(_listening(port))
    if not inodes:
        return None
    for pid in _processes():
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in inodes:
                    return _name(pid)
    return "somebody"


def proxies_running() -> tuple[str, ...]:
    """Return the reverse proxies that run here, in containers or not."""
    found = {_name(pid) for pid in _processes()}
    return tuple(name for name in PROXIES if name in found)


def _listening(port: int) -> Iterator[str]:
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{words[9]}]"


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
