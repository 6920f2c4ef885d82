"""Whether a host can only be this machine: what is said to it, nobody else hears."""

from ipaddress import IPv4Address, IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Say whether a host can only be this machine."""
    if host == "localhost":
        return True
    address = ip_of(host)
    return address is not None and address.is_loopback


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is written as; none: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
