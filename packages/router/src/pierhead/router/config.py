"""Settings of a control plane."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_PORT: Final = 7443
# In the data folder, for the process of the registry, if it has one of its own.
URL_FILE: Final = "url"
REGISTRY_SOCKET: Final = "registry.sock"
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - over TLS
LETS_ENCRYPT: Final = "https://acme-v02.api.letsencrypt.org/directory"
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where it keeps things, where it listens, and how others reach it."""

    data: Path
    database: Path | None = None  # none: in the data folder
    config: Path  # the owner's token and what clients need
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT  # 0: any
    public_url: str | None = None  # none: found out, see domain/reach.py
    proxies: tuple[str, ...] = ()  # networks of the reverse proxy that has the certificate
    domain: str | None = None  # a public name, whose certificate comes from an ACME server
    domain_port: int | None = 443  # where it is answered; none: at `port`, with proof on `web_port`
    web_port: int = 80
    acme: str = LETS_ENCRYPT
    here: bool = True
    insecure_http: bool = False
    keep_builds_days: int = 90  # after their end, with the images that no tag names
    keep_logs_days: int = 30
    ready_fd: int | None = None  # told the URL, once, when requests are accepted
    end_with_input: bool = False  # stop when standard input ends, and nobody uses it
    held_fd: int | None = None  # kept open to the end: it holds a lock
    time_scale: float = 1.0  # leases and waits shortened for tests; 1 elsewhere


def data_folder() -> Path:
    """Return where a control plane keeps its data."""
    said = os.environ.get("PIERHEAD_DATA")
    if said:
        return Path(said)
    if os.geteuid() == 0:
        return Path("/var/lib/pierhead")
    return Path.home() / ".local/share/pierhead"


def memory_cap() -> int:
    """Return how many bytes builds may use on this machine: half, and 1.5 GiB always stay free."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(256 * MIB, min(total // 2, total - 1536 * MIB))
