"""Which addresses are safe to speak to.

Tokens travel in the clear over plain HTTP, so it is for loopback only, unless asked for by name.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from pierhead.protocol.errors import Invalid
from pierhead.protocol.loopback import ip_of, is_loopback
from pierhead.protocol.problem import problem

# With a letter in it: four numbers that are no address are no name either.
_NAME: Final = re.compile(r"(?=.*[a-z_-])[a-z0-9_]([a-z0-9._-]*[a-z0-9_.])?")
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
    """Return the host in a URL, without brackets; empty where there is none that can be read.

    A name in other letters than ASCII has a form in these, too (RFC 5890, `xn--`), which is meant.
    """
    try:
        parts = urlsplit(url)
        host, readable = parts.hostname or "", parts.port != 0 and url.isprintable()
    except ValueError:
        return ""
    is_host = bool(_NAME.fullmatch(host)) or ip_of(host) is not None
    return host if is_host and readable else ""
