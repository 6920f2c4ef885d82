"""The one place that knows the HTTP library: connections, tokens, and which addresses are safe.

Tokens travel in the clear over plain HTTP, so it is for loopback only, unless asked for by name.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

import httpx

from pierhead.protocol.errors import Invalid, Unavailable
from pierhead.protocol.problem import problem
from pierhead.protocol.version import PROTOCOL, PROTOCOL_HEADER

# A held request takes 25 s; a busy small machine may add some seconds.
READ_SECONDS: Final = 40.0
CONNECT_SECONDS: Final = 10.0

Client = httpx.AsyncClient
Response = httpx.Response
Transport = httpx.AsyncBaseTransport


def is_loopback(host: str) -> bool:
    """Say whether a host can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(url: str, *, insecure_http: bool = False) -> str:
    """Return the base URL without a trailing slash.

    Raises:
        Invalid: not http(s), or plain HTTP to another machine.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        hint = "write it like http://127.0.0.1:7443"
        raise Invalid(
            problem("invalid-document", f"not a URL of a control plane: {url}", hint=hint)
        )
    if parts.scheme == "http" and not insecure_http and not is_loopback(parts.hostname):
        detail = f"plain HTTP to {parts.hostname} would send the token in the clear"
        hint = "use https, or add --insecure-http in a network that you trust"
        raise Invalid(problem("invalid-document", detail, hint=hint))
    return url.rstrip("/")


def open_client(base_url: str, *, token: str | None, transport: Transport | None = None) -> Client:
    """Return a client for one control plane. Obeys HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE."""
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx.Limits(max_connections=32, keepalive_expiry=30)
    return httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        timeout=timeout,
        limits=limits,
        transport=transport,
        # A proxy has no business between two processes of one machine.
        trust_env=not is_loopback(urlsplit(base_url).hostname or ""),
    )


def unreachable(base_url: str, error: httpx.HTTPError) -> Unavailable:
    """Return the error for a request that got no answer."""
    detail = f"no answer from {base_url}: {error or type(error).__name__}"
    return Unavailable(problem("dependency-unavailable", detail))
