"""Which addresses are safe to speak to.

Tokens travel in the clear over plain HTTP, so it is for loopback only, unless asked for by name.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from pierhead.protocol.errors import Invalid
from pierhead.protocol.problem import problem

INSECURE_HTTP: Final = "PIERHEAD_INSECURE_HTTP"  # the environment variable that allows it


def check_url(url: str, *, insecure_http: bool = False) -> str:
    """Return the base URL without a trailing slash.

    Raises:
        Invalid: not http(s), or plain HTTP to another machine.
    """
    host = host_of(url)
    if not url.startswith(("http://", "https://")) or not host:
        hint = "write it like http://127.0.0.1:7443"
        raise Invalid(
            problem("invalid-document", f"not a URL of a control plane: {url}", hint=hint)
        )
    if url.startswith("http://") and not insecure_http and not is_loopback(host):
        detail = f"plain HTTP to {host} would send the token in the clear"
        hint = f"use https; in a network you trust set {INSECURE_HTTP}=1 (join: --insecure-http)"
        raise Invalid(problem("invalid-document", detail, hint=hint))
    return url.rstrip("/")


def host_of(url: str) -> str:
    """Return the host in a URL, without brackets; empty where there is none that can be read."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


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
