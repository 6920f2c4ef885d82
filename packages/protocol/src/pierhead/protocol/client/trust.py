"""Whom a client believes to be the control plane.

A control plane without a public name has a certificate authority of its own. Its fingerprint, the
pin, comes with the join code or from whoever runs it. The authority's certificate itself may come
from anybody: it counts only if it has that fingerprint, and no secret is sent before that.
"""

import hashlib
import hmac
import os
import ssl
from pathlib import Path
from typing import Final

import httpx

from pierhead.protocol.client.failure import unanswered
from pierhead.protocol.client.proxy import proxy_for
from pierhead.protocol.errors import IntegrityError, Invalid, Unavailable
from pierhead.protocol.problem import problem

CA_PATH: Final = "/ca.crt"
CA_BYTES_MAX: Final = 64 * 1024
FETCH_SECONDS: Final = 15.0


def tls_context(ca: str | None) -> ssl.SSLContext:
    """Return what verifies the other side: by one authority (PEM), or by those of the system.

    OpenSSL itself reads `SSL_CERT_FILE` and `SSL_CERT_DIR` for the latter.
    """
    if ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=ca)
        return context
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        # A Python that was not built for this system looks where there is nothing.
        return httpx.create_ssl_context(trust_env=False)
    return context


def trusted_ca(noted: str | None) -> str | None:
    """Return the authority to verify by: `PIERHEAD_CA` names a file, and wins over what is noted.

    Raises:
        Invalid: the file is not there, or no certificate.
    """
    said = os.environ.get("PIERHEAD_CA")
    if not said:
        return noted
    try:
        text = Path(said).read_text()
        fingerprint(text)
    except (OSError, ValueError) as error:
        hint = "PIERHEAD_CA is the file of the control plane's certificate authority, as PEM"
        detail = f"there is no certificate in {said}"
        raise Invalid(problem("invalid-document", detail, hint=hint)) from error
    return text


def fingerprint(ca: str) -> str:
    """Return the SHA-256 of a certificate (PEM), as 64 hexadecimal digits.

    Raises:
        ValueError: it is not one certificate.
    """
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca.strip())).hexdigest()


def read_pin(text: str) -> str:
    """Return a pin as it was typed: any case, with or without colons and `sha256:`.

    Raises:
        Invalid: it is not 64 hexadecimal digits.
    """
    plain = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if len(plain) == 64 and all(digit in "0123456789abcdef" for digit in plain):
        return plain
    hint = "the control plane prints it: pierhead up"
    raise Invalid(problem("invalid-document", "a pin is 64 hexadecimal digits", hint=hint))


async def fetch_ca(base_url: str) -> str:
    """Return the authority that whoever answers there claims to have, as PEM. It proves nothing.

    Raises:
        Unavailable: nobody answers, or not as a control plane does.
    """
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    proxy = proxy_for(base_url, os.environ)
    timeout = httpx.Timeout(FETCH_SECONDS)
    try:
        async with (
            httpx.AsyncClient(
                verify=anybody, proxy=proxy, trust_env=False, timeout=timeout
            ) as http,
            http.stream("GET", base_url + CA_PATH) as answer,
        ):
            found = b""
            async for chunk in answer.aiter_bytes():
                found += chunk
                if len(found) > CA_BYTES_MAX:
                    raise ValueError("too large")
        if answer.status_code != 200:
            raise ValueError(f"HTTP {answer.status_code}")
        text = found.decode("ascii")
        fingerprint(text)
    except httpx.HTTPError as error:
        raise unanswered(base_url, error) from error
    except ValueError as error:
        detail = f"{base_url} does not show a certificate authority, as a control plane does"
        raise Unavailable(problem("dependency-unavailable", detail)) from error
    return text


async def pinned_ca(base_url: str, pin: str) -> str:
    """Return the authority that has the fingerprint `pin`.

    Raises:
        IntegrityError: whoever answers there has another one. Nothing secret was sent.
        Unavailable: nobody answers.
    """
    found = await fetch_ca(base_url)
    if hmac.compare_digest(fingerprint(found), pin):
        return found
    detail = f"{base_url} is not the control plane that was named: its certificate authority is"
    hint = "nothing secret was sent; check the address, and who is between here and there"
    detail = f"{detail} {fingerprint(found)[:16]}..., not {pin[:16]}..."
    raise IntegrityError(problem("digest-mismatch", detail, hint=hint))
