"""Whom a client believes to be the control plane.

A control plane without a public name has a certificate authority of its own. Its fingerprint, the
pin, comes with the join code or from whoever runs it. The authority's certificate itself may come
from anybody: it counts only if it has that fingerprint, and no secret is sent before that.

When the authority is changed for another one, whoever is connected by the old one hears of the new
one by that connection. Over any other, nothing is learned.
"""

import asyncio
import hashlib
import hmac
import os
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
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
SHOWN_SECONDS_MAX: Final = 60.0
AUTHORITIES_MAX: Final = 4
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----\s[^-]+-----END CERTIFICATE-----")


class Trust:
    """By which authorities one control plane is believed to be itself; it may be told others.

    `keep` stores them, as one text; none: nothing is learned, since somebody else says what counts.
    `again` is what to do when they do not count any more.
    """

    def __init__(
        self,
        ca: str | None,
        keep: Callable[[str], None] | None = None,
        again: str = "pierhead login URL --pin PIN",
    ) -> None:
        self.ca = ca  # PEM; none: the system's authorities
        self.again = again
        self.pins = fingerprints(ca) if ca else ()
        self._context: ssl.SSLContext | None = None
        self._keep = keep if ca else None

    @property
    def context(self) -> ssl.SSLContext:
        """What verifies the other side. Made when it is needed: the system's authorities weigh."""
        if self._context is None:
            self._context = tls_context(self.ca)
        return self._context

    def lacks(self, said: str) -> bool:
        """Say whether the pins that an answer names, with commas, are not the ones that count."""
        return self._keep is not None and said != "" and set(said.split(",")) != set(self.pins)

    def learn(self, shown: str, said: str) -> None:
        """Believe the shown authorities from now on, which were named by their pins.

        An answer that was overtaken by another one names others than are shown since.
        Whoever has a connection already goes on to believe whom it believed.

        Raises:
            ValueError: others were shown, or too many.
            OSError: it could not be stored; nothing was learned.
        """
        found = {fingerprint(one): one for one in certificates(shown)}
        pins = tuple(said.split(","))
        if self._keep is None or len(pins) > AUTHORITIES_MAX or set(pins) != set(found):
            raise ValueError("the authorities are not the ones that were named")
        ca = "".join(found[pin] for pin in pins)
        self._keep(ca)
        if set(self.pins) <= set(pins):
            self.context.load_verify_locations(cadata=ca)
        else:
            self._context = None
        self.ca, self.pins = ca, pins


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
        fingerprints(text)
    except (OSError, ValueError) as error:
        hint = "PIERHEAD_CA is the file of the control plane's certificate authority, as PEM"
        detail = f"there is no certificate in {said}"
        raise Invalid(problem("invalid-document", detail, hint=hint)) from error
    return text


def trust_in(noted: str | None, keep: Callable[[str], None], *, again: str) -> Trust:
    """Return the authorities that were noted, and that `keep` notes; a file that is named wins.

    Raises:
        Invalid: `PIERHEAD_CA` names a file that is not there, or no certificate.
    """
    found = trusted_ca(noted)
    if said := os.environ.get("PIERHEAD_CA"):
        return Trust(found, again=f"put it into {said} (GET {CA_PATH}), and compare the pin")
    return Trust(found, keep, again)


def fingerprint(ca: str) -> str:
    """Return the SHA-256 of a certificate (PEM), as 64 hexadecimal digits.

    Raises:
        ValueError: it is not one certificate.
    """
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ca.strip())).hexdigest()


def certificates(ca: str) -> tuple[str, ...]:
    """Return the certificates in a text, each as PEM."""
    return tuple(found[0] + "\n" for found in _CERTIFICATE.finditer(ca))


def fingerprints(ca: str) -> tuple[str, ...]:
    """Return the fingerprint of each certificate in a text.

    Raises:
        ValueError: there is none, or one is damaged.
    """
    found = tuple(map(fingerprint, certificates(ca)))
    if not found:
        raise ValueError("there is no certificate")
    return found


def certificate_ends(ca: str) -> tuple[datetime, ...]:
    """Return when each authority in a text (PEM) ends to be one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca)
    ends = (str(one["notAfter"]) for one in context.get_ca_certs())
    return tuple(datetime.fromtimestamp(ssl.cert_time_to_seconds(one), UTC) for one in ends)


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
    """Return the authorities that whoever answers there claims to have, as PEM.

    It proves nothing. More than one are shown while one is changed for the other.

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
        ):
            text = await shown_to(http, base_url)
    except httpx.HTTPError as error:
        raise unanswered(base_url, error) from error
    except (ValueError, TimeoutError) as error:
        detail = f"{base_url} does not show a certificate authority, as a control plane does"
        raise Unavailable(problem("dependency-unavailable", detail)) from error
    return text


async def shown_to(http: httpx.AsyncClient, base_url: str = "") -> str:
    """Return the authorities that a client is shown, as PEM: as true as its connection is.

    Raises:
        HTTPError: there is no answer.
        ValueError: it is not certificates, or too much.
        TimeoutError: it takes too long.
    """
    found = b""
    as_it_is = {"Accept-Encoding": "identity"}
    async with (
        asyncio.timeout(SHOWN_SECONDS_MAX),
        http.stream("GET", base_url + CA_PATH, headers=as_it_is) as answer,
    ):
        async for chunk in answer.aiter_raw():
            found += chunk
            if len(found) > CA_BYTES_MAX:
                raise ValueError("too large")
    if answer.status_code != 200:
        raise ValueError(f"HTTP {answer.status_code}")
    text = found.decode("ascii")
    fingerprints(text)
    return text


async def pinned_ca(base_url: str, pin: str) -> str:
    """Return the authority that has the fingerprint `pin`.

    Raises:
        IntegrityError: whoever answers there has another one. Nothing secret was sent.
        Unavailable: nobody answers.
    """
    shown = certificates(await fetch_ca(base_url))
    for one in shown:
        if hmac.compare_digest(fingerprint(one), pin):
            return one
    detail = f"{base_url} is not the control plane that was named: its certificate authority is"
    hint = "nothing secret was sent; was its authority changed since (there: pierhead ca)? then ask"
    hint = f"{hint} for a new code or pin; otherwise see who is between here and there"
    detail = f"{detail} {fingerprint(shown[0])[:16]}..., not {pin[:16]}..."
    raise IntegrityError(problem("digest-mismatch", detail, hint=hint))
