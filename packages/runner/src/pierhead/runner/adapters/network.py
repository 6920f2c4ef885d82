"""A network namespace for one build: out to the world, not to this machine or its neighbours.

A veth pair with two addresses of its own joins the namespace to the host. The host masquerades
what comes from it, and drops whatever is addressed to the host itself, to link-local addresses
(cloud metadata) and to other builds. What the host has on its loopback is out of reach because the
namespace has a loopback of its own.
"""

import contextlib
import ipaddress
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.runner.adapters.process import run

_POOL: Final = ipaddress.ip_network("100.126.0.0/16")  # RFC 6598: neither public nor anybody's LAN
_LINK_LOCAL: Final = "169.254.0.0/16"
_NAMESPACES: Final = Path("/run/netns")
_COMMENT: Final = "pierhead"
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")


class NetworkError(Exception):
    """The namespace could not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network of one build."""

    name: str  # of the namespace and of the host's end, at most 15 characters
    subnet: str

    @property
    def path(self) -> Path:
        """What `nsenter --net` takes."""
        return _NAMESPACES / self.name

    @property
    def link(self) -> Path:
        """The host's end, as the kernel shows it."""
        return Path("/sys/class/net", self.name)

    def rules(self) -> list[tuple[str, ...]]:
        """Return the firewall's rules for it: table, chain, and the rest."""
        mark = ("-m", "comment", "--comment", f"{_COMMENT}:{self.name}")
        incoming, outgoing = ("-i", self.name), ("-o", self.name)
        established = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
        # Inserted one after the other at the top of a chain, so the last one here comes first.
        return [
            ("nat", "POSTROUTING", "-s", self.subnet, *mark, "-j", "MASQUERADE"),
            ("filter", "INPUT", *incoming, *mark, "-j", "DROP"),
            ("filter", "FORWARD", *outgoing, *mark, "-j", "DROP"),
            ("filter", "FORWARD", *outgoing, *established, *mark, "-j", "ACCEPT"),
            ("filter", "FORWARD", *incoming, *mark, "-j", "ACCEPT"),
            ("filter", "FORWARD", *incoming, "-d", str(_POOL), *mark, "-j", "DROP"),
            ("filter", "FORWARD", *incoming, "-d", _LINK_LOCAL, *mark, "-j", "DROP"),
        ]


def network_for(attempt: str) -> Network:
    """Return the network of an attempt; the same attempt always has the same."""
    number = zlib.crc32(attempt.encode())
    name = f"ph{number:08x}"
    first = int(_POOL.network_address) + (number % (_POOL.num_addresses // 4)) * 4
    return Network(name=name, subnet=f"{ipaddress.ip_address(first)}/30")


async def open_network(network: Network) -> None:
    """Make the namespace.

    Raises:
        NetworkError: a step failed; what was made until then is removed.
    """
    try:
        await _ip("netns", "add", network.name)
        await _ip("-n", network.name, "link", "set", "lo", "up")
        await _connect(network)
    except (NetworkError, OSError) as error:
        await close_network(network)
        raise NetworkError(str(error)) from error


async def _connect(network: Network) -> None:
    ours, theirs = list(ipaddress.ip_network(network.subnet).hosts())
    inside = ("-n", network.name)
    peer = ("peer", "name", "eth0", "netns", network.name)
    await _ip("link", "add", network.name, "type", "veth", *peer)
    # The rules are for IPv4; by IPv6 this end would answer under its link-local address.
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/sys/net/ipv6/conf/{network.name}/disable_ipv6").write_text("1")
    await _ip("addr", "add", f"{ours}/30", "dev", network.name)
    await _ip("link", "set", network.name, "up")
    await _ip(*inside, "addr", "add", f"{theirs}/30", "dev", "eth0")
    await _ip(*inside, "link", "set", "eth0", "up")
    await _ip(*inside, "route", "add", "default", "via", str(ours))
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for table, chain, *rest in network.rules():
        await _checked("iptables", "-w", "5", "-t", table, "-I", chain, *rest)


def _allow_forwarding() -> None:
    # Written here, because a small machine has no sysctl command; and only when it is not so yet,
    # because in a container these files can be readable only.
    try:
        if _FORWARDING.read_text().strip() != "1":
            _FORWARDING.write_text("1")
    except OSError as error:
        raise NetworkError(f"{_FORWARDING}: {error.strerror}") from error


async def close_network(network: Network) -> None:
    """Remove everything that belongs to the namespace; harmless when it is gone."""
    for table, chain, *rest in network.rules():
        await run("iptables", "-w", "5", "-t", table, "-D", chain, *rest)
    left = leftovers(network)
    if str(network.link) in left:
        await run("ip", "link", "del", network.name)
    if str(network.path) in left:
        await run("ip", "netns", "del", network.name)


def leftovers(network: Network) -> tuple[str, ...]:
    """Return what is still there of it: the namespace and the host's end."""
    return tuple(str(place) for place in (network.path, network.link) if place.exists())


async def _ip(*arguments: str) -> None:
    await _checked("ip", *arguments)


async def _checked(*command: str) -> None:
    ended = await run(*command, seconds=20)
    if ended.code != 0:
        raise NetworkError(f"{' '.join(command[:6])}: {ended.output.strip()[:300]}")
