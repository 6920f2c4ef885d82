"""By which addresses and names this machine is reached, as far as it knows itself."""

import fcntl
import ipaddress
import re
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915  # linux/sockios.h
_GLOBAL: Final = "00"  # scope of a line of if_inet6
_HOST_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
# This machine's ends of the networks of builds: they come and go, and lead to nobody but steps.
_OF_A_BUILD: Final = re.compile(r"ph[0-9a-f]{8}\Z")
# RFC 5737: no packet is sent; the question is only from where it would be.
_SOMEWHERE: Final = "198.51.100.1"


def own_names() -> tuple[str, ...]:
    """Return the addresses of the lasting interfaces and the host name; loopback comes last."""
    found = [*_ipv4(), *_ipv6()]
    host = socket.gethostname().lower()
    names = [host] if _HOST_NAME.match(host) else []
    return tuple(dict.fromkeys([*found, *names, "localhost", "127.0.0.1", "::1"]))


def usual_address() -> str | None:
    """Return the address that packets to elsewhere come from; none: there is no way elsewhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_SOMEWHERE, 9))
        except OSError:
            return next(iter(_ipv4()), None)
        address: str = probe.getsockname()[0]
    return address


def _ipv4() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if _OF_A_BUILD.match(name):
                continue
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            found.append(str(ipaddress.IPv4Address(answer[20:24])))
    return [address for address in found if not ipaddress.ip_address(address).is_loopback]


def _ipv6() -> list[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    words = (line.split() for line in lines)
    return [
        str(ipaddress.IPv6Address(int(word[0], 16)))
        for word in words
        if word[3] == _GLOBAL and not _OF_A_BUILD.match(word[5])
    ]
