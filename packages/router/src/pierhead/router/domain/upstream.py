"""Registries of others: which one is meant, with whose login, and what of an answer counts.

What was seen under one login is never given to whoever has another: a scope is the id of a login,
or empty for nobody's, and what is kept of a registry is kept for one scope.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from pierhead.protocol.ids import PROJECT_PATTERN, TAG_PATTERN
from pierhead.protocol.registry import HOST_PATTERN
from pierhead.router.domain.errors import InvalidRequest, UpstreamLies

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
DOCKER_HUB: Final = "docker.io"
# By all these names it is known, and only one of them is a registry.
_HUB_NAMES: Final = {DOCKER_HUB, "index.docker.io", "registry-1.docker.io", "www.docker.io"}
_HUB_ENDPOINT: Final = "registry-1.docker.io"
NAME_LENGTH_MAX: Final = 255  # distribution-spec
# So long is what a tag last meant told on when its registry does not answer.
STALE_MAX: Final = timedelta(days=7)
# A registry's token that says nothing of its end is good for a minute (Docker's token flow).
TOKEN_SECONDS: Final = 60.0
_TOKEN_SECONDS_MAX: Final = 3600.0
_EARLY: Final = 0.8
LAYER_BYTES_MAX: Final = 16 * 1024**3
# Engines ask for a manifest first. A configuration or a small layer fits into it all the same.
NAMELESS_BYTES_MAX: Final = 64 * 1024**2
# What comes has so long to begin with, and gains time by each byte.
_GRACE_SECONDS: Final = 30.0
_LEAST_BYTES_PER_SECOND: Final = 16 * 1024
_HOST: Final = re.compile(HOST_PATTERN)
_NAME: Final = re.compile(PROJECT_PATTERN)
_TAG: Final = re.compile(TAG_PATTERN)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
_SCHEME: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*)\s+")
_PARAMETER: Final = re.compile(r'\s*([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*,?')
# The world's addresses that stand for an IPv4 address behind a translator (RFC 6052).
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A registry that the owner added. `username` none: it is only allowed, nobody logs in."""

    id: str  # another one for each time that it is added: what was seen before counts no more
    host: str
    project: str  # empty: for all
    username: str | None
    plain_http: bool
    ca: str | None
    added_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image of a registry. `reference` is a tag or a digest."""

    host: str
    name: str
    reference: str

    def __str__(self) -> str:
        mark = "@" if is_digest(self.reference) else ":"
        return f"{self.host}/{self.name}{mark}{self.reference}"


def registry_host(text: str) -> str:
    """Return a registry's host in its one spelling.

    Raises:
        InvalidRequest: it is none.
    """
    plain = text.strip().lower()
    if not _HOST.match(plain) or len(plain) > 261:
        hint = "write it like ghcr.io or registry.example.com:5000"
        raise InvalidRequest(f"{text[:80]!r} is not the host of a registry", hint=hint)
    plain = plain.removesuffix(":443")
    return DOCKER_HUB if plain in _HUB_NAMES else plain


def image_at(host: str, name: str, reference: str) -> Image:
    """Return an image of a registry.

    Raises:
        InvalidRequest: the name or the reference cannot be one.
    """
    if len(name) > NAME_LENGTH_MAX or not _NAME.match(name):
        raise InvalidRequest(f"{name[:140]!r} is not the name of an image")
    if not is_digest(reference) and not _TAG.match(reference):
        raise InvalidRequest(f"{reference[:140]!r} is neither a tag nor a sha256 digest")
    return Image(host=host, name=name, reference=reference)


def named_image(host: str, text: str) -> Image:
    """Return what somebody calls an image of a registry: `NAME`, `NAME:TAG` or `NAME@DIGEST`.

    Raises:
        InvalidRequest: it is not one.
    """
    said = text.strip().removeprefix(f"{host}/")
    name, at, digest = said.partition("@")
    reference = digest
    if not at:
        name, _, reference = said.partition(":")
    if host == DOCKER_HUB and "/" not in name:
        name = f"library/{name}"
    return image_at(host, name, reference or "latest")


def is_digest(reference: str) -> bool:
    """Say whether a reference names content, and not a tag."""
    return _DIGEST.match(reference) is not None


def endpoint(host: str) -> str:
    """Return where a registry is asked."""
    return _HUB_ENDPOINT if host == DOCKER_HUB else host


def login_for(logins: Iterable[Login], host: str, project: str) -> Login | None:
    """Return the login that counts for a project: its own, or the one for all."""
    fitting = [one for one in logins if one.host == host and one.project in {"", project}]
    return max(fitting, key=lambda one: len(one.project), default=None)


def is_public(address: Address) -> bool:
    """Say whether an address is the world's: not this machine's, its network's or its cloud's."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def host_name(host: str) -> str:
    """Return a host without its port."""
    return host.partition(":")[0]


Scheme: TypeAlias = Literal["basic", "bearer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What a registry wants to see (RFC 9110, section 11.6.1; Docker's token flow)."""

    scheme: Scheme
    realm: str = ""
    service: str = ""


def challenge(headers: Iterable[str]) -> Challenge | None:
    """Return what can be answered of `WWW-Authenticate`: tokens before passwords."""
    found: list[Challenge] = []
    for header in headers:
        for scheme, parameters in _challenges(header):
            realm, service = parameters.get("realm", ""), parameters.get("service", "")
            if scheme == "bearer" and realm:
                found.insert(0, Challenge(scheme="bearer", realm=realm, service=service))
            elif scheme == "basic":
                found.append(Challenge(scheme="basic", realm=realm))
    return found[0] if found else None


def _challenges(header: str) -> Iterable[tuple[str, Mapping[str, str]]]:
    """Yield each scheme of a header with its parameters; several may share one header."""
    rest = header[:4096]
    while (began := _SCHEME.match(rest + " ")) is not None:
        rest, parameters = rest[began.end() :], dict[str, str]()
        while (one := _PARAMETER.match(rest)) is not None:
            quoted, plain = one[2], one[3]
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
            parameters[one[1].lower()] = value
            rest = rest[one.end() :]
        yield began[1].lower(), parameters


def token_seconds(said: object) -> float:
    """Return how long a registry's token is used: less than it says, and never for hours."""
    usable = isinstance(said, int | float) and not isinstance(said, bool) and said > 0
    # Whole numbers have no end in JSON: those that no float can be are over the bound, too.
    seconds = said if usable and isinstance(said, int | float) else TOKEN_SECONDS
    return min(seconds, _TOKEN_SECONDS_MAX) * _EARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much is taken of something whose sender is not believed. `why`: who says so."""

    size_bytes: int
    why: str

    def exceeded(self, host: str, what: str) -> UpstreamLies:
        """Return the error for a registry that sends more, or says that it will."""
        return UpstreamLies(
            host, f"{host} sends more of {what} than the {self.size_bytes} bytes {self.why}"
        )


def blob_bound(host: str, what: str, said: int | None) -> Bound:
    """Return how much of a blob is taken: what the manifests that name it say; none: none does.

    Raises:
        UpstreamLies: that is more than a layer may have.
    """
    if said is None:
        return Bound(size_bytes=NAMELESS_BYTES_MAX, why="that are taken of what no manifest named")
    if said > LAYER_BYTES_MAX:
        detail = f"{host} has a layer of {said} bytes; {LAYER_BYTES_MAX} is the most that is taken"
        raise UpstreamLies(host, f"{detail} ({what})")
    return Bound(size_bytes=said, why="that its manifest says")


def patience_seconds(arrived_bytes: int) -> float:
    """Return how long all in all may be waited for what a registry sends, when so much came."""
    return _GRACE_SECONDS + arrived_bytes / _LEAST_BYTES_PER_SECOND


Verdict: TypeAlias = Literal["kept", "stale", "gone"]


def when_silent(checked_at: datetime | None, now: datetime) -> Verdict:
    """Say what is told of a tag whose registry does not answer: what it was, for a while."""
    if checked_at is None:
        return "gone"
    return "stale" if now - checked_at <= STALE_MAX else "gone"
