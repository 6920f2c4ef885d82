"""Whose process listens on a port of this machine: a token is not for everybody there.

While nobody listens on a port of loopback, every user of the machine may. The kernel shows who does
(proc_net_tcp; `Documentation/networking/proc_net_tcp.rst`), and whoever listens cannot hide it.
"""

import itertools
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from pierhead.protocol.errors import Refused
from pierhead.protocol.loopback import ip_of
from pierhead.protocol.problem import problem
from pierhead.protocol.users import user_name

Address: TypeAlias = IPv4Address | IPv6Address
TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"
_LOCALHOST: Final = (ip_address("127.0.0.1"), ip_address("::1"))


def require_listener(url: str, users: frozenset[int]) -> None:
    """Go on if nobody but one of `users` (uid) listens at a URL of this machine.

    Where the kernel shows no table nothing can be known, and nothing is refused.

    Raises:
        Refused: somebody else does; nothing was sent to them.
    """
    strangers = {uid for table in TABLES for uid in listeners(_text(table), url)} - users
    if strangers:
        who = " and ".join(sorted(map(user_name, strangers)))
        detail = f"at {url} a process of {who} listens, who is not the control plane's user"
        hint = f"nothing was sent; is it meant to be? then: PIERHEAD_TOKEN, or pierhead login {url}"
        raise Refused(problem("dependency-unavailable", detail, hint=hint))


def listeners(table: str, url: str) -> Iterator[int]:
    """Yield the user of each process that answers at a URL of this machine, by a kernel's table."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    meant = (found,) if (found := ip_of(host)) is not None else _LOCALHOST
    for line in table.splitlines()[1:]:
        _, local, _, state, _, _, _, uid, *_ = line.split()
        address, _, number = local.partition(":")
        if state == _LISTENS and int(number, 16) == port:
            listens = _address(address)
            if listens.is_unspecified or listens in meant:
                yield int(uid)


def _address(digits: str) -> Address:
    """Return an address as the kernel writes it: words of four bytes, each in its own order."""
    words = [digits[at : at + 8] for at in range(0, len(digits), 8)]
    whole = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    found = ip_address(whole)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _text(table: Path) -> str:
    """Return the rows of those who listen: they come first, and there may be very many others."""
    try:
        with table.open() as rows:
            first = next(rows, "")
            return first + "".join(itertools.takewhile(lambda row: f" {_LISTENS} " in row, rows))
    except OSError:  # no Linux, or no IPv6
        return ""
