"""The one place that knows the HTTP library: connections and tokens."""

import asyncio
import os
import ssl
from typing import Final

import httpx

from pierhead.protocol.client.proxy import proxy_for
from pierhead.protocol.client.trust import Trust, tls_context
from pierhead.protocol.errors import TokenRefused, Unavailable
from pierhead.protocol.problem import problem
from pierhead.protocol.version import PROTOCOL, PROTOCOL_HEADER

# A held request takes 25 s; a busy small machine may add some seconds.
READ_SECONDS: Final = 40.0
CONNECT_SECONDS: Final = 10.0
# The largest answers are 16 MiB of a log; a refusal is a few lines.
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
REFUSAL_BYTES_MAX: Final = 256 * 1024
ANSWER_SECONDS_MAX: Final = 600.0

Client = httpx.AsyncClient
Response = httpx.Response
Transport = httpx.AsyncBaseTransport


def checked_token(token: str) -> str:
    """Return a token without the blanks and line ends that come with it when it is copied.

    Raises:
        TokenRefused: it cannot be one. It is not shown: it may be most of a real one.
    """
    stripped = token.strip()
    if not stripped.isascii() or any(not "!" <= letter <= "~" for letter in stripped):
        hint = "copy it again, whole and alone: pierhead login, or PIERHEAD_TOKEN"
        raise TokenRefused(problem("unauthenticated", "what was given is no token", hint=hint))
    return stripped


def open_client(
    base_url: str,
    *,
    token: str | None,
    ca: str | Trust | None = None,
    transport: Transport | None = None,
) -> Client:
    """Return a client for one control plane, verified by `ca` (PEM) or by the system's authorities.

    Obeys HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE.
    """
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}
    if token:
        headers["Authorization"] = f"Bearer {checked_token(token)}"
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx.Limits(max_connections=32, keepalive_expiry=30)
    return httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        timeout=timeout,
        limits=limits,
        transport=transport,
        verify=_verifier(base_url, ca),
        proxy=None if transport else proxy_for(base_url, os.environ),
        trust_env=False,  # what is obeyed was just read, by the same rules in every process
    )


async def whole(answer: Response, limit_bytes: int) -> bytes:
    """Return the body of an answer, whoever sent it: no more than the limit, and not for ever.

    Raises:
        HTTPError: it broke off.
        Unavailable: it is larger, or takes too long.
    """
    found = bytearray()
    where = answer.request.url.netloc.decode("ascii")
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            async for piece in answer.aiter_bytes():
                found += piece
                if len(found) > limit_bytes:
                    detail = f"{where} answers with more than {limit_bytes} bytes"
                    raise Unavailable(problem("dependency-unavailable", detail))
    except TimeoutError as error:
        detail = f"{where} is not done with an answer after {ANSWER_SECONDS_MAX:.0f} s"
        raise Unavailable(problem("dependency-unavailable", detail)) from error
    finally:
        await answer.aclose()
    return bytes(found)


def _verifier(base_url: str, ca: str | Trust | None) -> ssl.SSLContext:
    if base_url.startswith("https:"):
        return ca.context if isinstance(ca, Trust) else tls_context(ca)
    # Nothing is verified over plain HTTP; loading the system's authorities takes a while.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
