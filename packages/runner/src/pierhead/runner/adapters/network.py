"""A network namespace for one build: out to the world, not to this machine or its neighbours.

A veth pair with two addresses of its own joins the namespace to the host. The host masquerades
what comes from it, and drops whatever is addressed to the host itself, to link-local addresses
(cloud metadata) and to other builds. What the host has on its loopback is out of reach because the
namespace has a loopback of its own. All of it carries the namespace's name, so it can be found.
"""

import asyncio
import contextlib
import fcntl
import ipaddress
import json
import os
import shlex
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.runner.adapters.process import run

# RFC 6598 first: neither public nor anybody's LAN. The others are for machines that route it.
_POOLS: Final = tuple(
    ipaddress.IPv4Network(pool) for pool in ("100.126.0.0/16", "10.213.0.0/16", "172.29.0.0/16")
)
_LINK_LOCAL: Final = "169.254.0.0/16"
_NAMESPACES: Final = Path("/run/netns")
# Networks are the machine's, whichever state folder a runner has.
_LOCK: Final = Path("/run/pierhead/subnets.lock")
_LOCK_SECONDS: Final = 60.0
_PREFIX: Final = "ph"
_COMMENT: Final = "pierhead"
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")
_IPTABLES: Final = ("iptables", "-w", "5", "-t")

Rule = tuple[str, ...]  # table, chain, and the rest


class NetworkError(RuntimeError):
    """The namespace could not be made."""


@dataclass(frozen=True, slots=True)
class Network:
    """The network of one build."""

    name: str  # of the namespace and of the host's end, at most 15 characters

    @property
    def path(self) -> Path:
        """What `nsenter --net` takes."""
        return _NAMESPACES / self.name

    @property
    def link(self) -> Path:
        """The host's end, as the kernel shows it."""
        return Path("/sys/class/net", self.name)


def network_of(attempt: str) -> Network:
    """Return the network of an attempt, whether or not it is there."""
    return Network(f"{_PREFIX}{zlib.crc32(attempt.encode()):08x}")


async def open_network(network: Network) -> ipaddress.IPv4Address:
    """Make the namespace; return this machine's address in it.

    Raises:
        NetworkError: a step failed; what was made until then is removed.
    """
    try:
        await _ip("netns", "add", network.name)
        await _ip("-n", network.name, "link", "set", "lo", "up")
        await _ip("link", "add", network.name, *_peer_in(network.name))
        async with _alone():
            subnet = choose_subnet(network.name, await _routed())
            await _connect(network, subnet)
        for table, chain, *rest in rules(network, subnet):
            await _checked(*_IPTABLES, table, "-I", chain, *rest)
        return next(subnet.hosts())
    except (NetworkError, OSError) as error:
        await close_network(network)
        raise NetworkError(str(error)) from error


@contextlib.asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    """Be the only one on this machine, of all runners, who looks for a free subnet and takes it.

    The kernel lets go of the lock when its holder dies.
    """
    _LOCK.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        async with asyncio.timeout(_LOCK_SECONDS):
            while not _locked(descriptor):  # noqa: ASYNC110 - another process lets go of it
                await asyncio.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def close_network(network: Network) -> None:
    """Remove everything that belongs to the namespace; harmless when it is gone."""
    for table, chain, *rest in await _rules_left(network):
        await run(*_IPTABLES, table, "-D", chain, *rest)
    if network.link.exists():
        await run("ip", "link", "del", network.name)
    if network.path.exists():
        await run("ip", "netns", "del", network.name)


async def number_of(network: Network) -> int | None:
    """Return the number of the host's end. Not of /sys: that may show another namespace's links."""
    shown = await run("ip", "-j", "link", "show", "dev", network.name)
    return int(json.loads(shown.output)[0]["ifindex"]) if shown.code == 0 else None


async def leftovers(network: Network) -> tuple[str, ...]:
    """Return what is still there of it: the namespace, the host's end, rules of the firewall."""
    places = [str(place) for place in (network.path, network.link) if place.exists()]
    return (*places, *(" ".join(rule) for rule in await _rules_left(network)))


def choose_subnet(name: str, taken: Sequence[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """Return four addresses that nothing here is routed to; mostly the same ones for a name.

    Raises:
        NetworkError: all of them are in use.
    """
    for pool in _POOLS:
        inside = [network for network in taken if network.overlaps(pool)]
        places = pool.num_addresses // 4
        first = zlib.crc32(name.encode()) % places
        for step in range(places):
            start = int(pool.network_address) + (first + step) % places * 4
            subnet = ipaddress.IPv4Network((start, 30))
            if not any(subnet.overlaps(network) for network in inside):
                return subnet
    raise NetworkError("no private subnet is free on this machine")


def rules(network: Network, subnet: ipaddress.IPv4Network) -> list[Rule]:
    """Return the firewall's rules for a build, each to be inserted at the top of its chain."""
    mark = ("-m", "comment", "--comment", f"{_COMMENT}:{network.name}")
    incoming, outgoing = ("-i", network.name), ("-o", network.name)
    established = ("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED")
    # The last one of a chain comes first.
    return [
        ("nat", "POSTROUTING", "-s", str(subnet), *mark, "-j", "MASQUERADE"),
        ("filter", "INPUT", *incoming, *mark, "-j", "DROP"),
        ("filter", "FORWARD", *outgoing, *mark, "-j", "DROP"),
        ("filter", "FORWARD", *outgoing, *established, *mark, "-j", "ACCEPT"),
        ("filter", "FORWARD", *incoming, *mark, "-j", "ACCEPT"),
        ("filter", "FORWARD", *incoming, "-o", f"{_PREFIX}+", *mark, "-j", "DROP"),
        ("filter", "FORWARD", *incoming, "-d", _LINK_LOCAL, *mark, "-j", "DROP"),
    ]


def _peer_in(namespace: str) -> list[str]:
    return ["type", "veth", "peer", "name", "eth0", "netns", namespace]


async def _connect(network: Network, subnet: ipaddress.IPv4Network) -> None:
    ours, theirs = list(subnet.hosts())
    inside = ("-n", network.name)
    _without_ipv6(network)
    await _ip("addr", "add", f"{ours}/30", "dev", network.name)
    await _ip("link", "set", network.name, "up")
    await _ip(*inside, "addr", "add", f"{theirs}/30", "dev", "eth0")
    await _ip(*inside, "link", "set", "eth0", "up")
    await _ip(*inside, "route", "add", "default", "via", str(ours))
    if _FORWARDING.read_text().strip() != "1":
        _FORWARDING.write_text("1")


def _without_ipv6(network: Network) -> None:
    """The rules are for IPv4; by IPv6 the host's end would answer under its link-local address."""
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/sys/net/ipv6/conf/{network.name}/disable_ipv6").write_text("1")


async def _routed() -> list[ipaddress.IPv4Network]:
    """Return what this machine has routes to, apart from the default one."""
    said = json.loads(await _ip("-4", "-j", "route", "show", "table", "all") or "[]")
    found = (route.get("dst", "default") for route in said)
    return [ipaddress.IPv4Network(text, strict=False) for text in found if text[0].isdigit()]


async def _rules_left(network: Network) -> list[Rule]:
    """Return the rules that carry the name, as the firewall writes them."""
    found: list[Rule] = []
    for table in ("nat", "filter"):
        listed = await run(*_IPTABLES, table, "-S")
        for line in listed.output.splitlines() if listed.code == 0 else ():
            _, *words = shlex.split(line)
            if f"{_COMMENT}:{network.name}" in words:
                found.append((table, *words))
    return found


async def _ip(*arguments: str) -> str:
    return await _checked("ip", *arguments)


async def _checked(*command: str) -> str:
    ended = await run(*command, seconds=20)
    if ended.code != 0:
        raise NetworkError(f"{' '.join(command[:6])}: {ended.output.strip()[:300]}")
    return ended.output
