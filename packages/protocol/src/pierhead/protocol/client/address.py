"""Which addresses are safe to speak to.

Tokens travel in the clear over plain HTTP, so it is for loopback only, unless asked for by name.
"""

from typing import Final
from urllib.parse import urlsplit

from pierhead.protocol.errors import Invalid
from pierhead.protocol.loopback import is_loopback
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
