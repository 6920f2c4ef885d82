"""Who is at the other end of a connection whose TLS somebody else speaks.

The socket cannot say it: it leads to that process, and not to the visitor.
"""

import ipaddress
from dataclasses import dataclass
from typing import Final

# Of the longest address with a zone, a port, a space and the end of the line.
LINE_BYTES_MAX: Final = 128


@dataclass(frozen=True, slots=True)
class Peer:
    """An IP address and a port."""

    address: str
    port: int

    @property
    def unmapped(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address as it is compared: without its zone, and IPv4 as what it is."""
        found = ipaddress.ip_address(self.address.partition("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
            return found.ipv4_mapped
        return found


def as_line(peer: Peer | None) -> bytes:
    """Return a line that says who it is; an empty one: the socket knows."""
    return f"{peer.address} {peer.port}\n".encode() if peer else b"\n"


def from_line(line: bytes) -> Peer | None:
    """Read a line, without its end."""
    address, _, port = line.decode().rpartition(" ")
    return Peer(address, int(port)) if address else None
