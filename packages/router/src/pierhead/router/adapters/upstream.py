"""Other registries over HTTP: who is asked is looked at first, and logins go to nobody else.

Where a registry sends to for tokens or layers is held to what the owner named: an address in a
private network by its very port, and one without TLS by having said so of it.

Each name is resolved here and the connection made to the very address that was found allowed, so a
name cannot mean one thing when it is looked at and another when it is used. A connection is used
for one request: two registries at one address never share one. Redirects are followed by hand; the
login stays behind as soon as another host, port or scheme is named.
"""

import asyncio
import base64
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode, urljoin, urlsplit

import httpx
import msgspec

from pierhead.protocol.client.failure import distrusted
from pierhead.protocol.client.proxy import proxy_for
from pierhead.protocol.client.trust import tls_context
from pierhead.protocol.registry import LoginKind
from pierhead.router.domain.errors import (
    HostNotAllowed,
    InvalidRequest,
    UpstreamBusy,
    UpstreamMissing,
    UpstreamRefused,
    UpstreamSilent,
)
from pierhead.router.domain.manifest import IMAGES, INDEXES, MANIFEST_BYTES_MAX
from pierhead.router.domain.upstream import (
    Address,
    Bound,
    Challenge,
    Image,
    challenge,
    endpoint,
    host_name,
    is_public,
    patience_seconds,
    token_seconds,
)
from pierhead.router.ports.upstreams import Upstream, UpstreamBlob

CONNECT_SECONDS: Final = 10.0
# Whoever waits for us may be cut off when nothing comes for 30 s.
SILENT_SECONDS: Final = 20.0
RESOLVE_SECONDS: Final = 10.0
REDIRECTS_MAX: Final = 5
TOKEN_BYTES_MAX: Final = 64 * 1024
TOKENS_MAX: Final = 1000
_ACCEPT: Final = ", ".join(sorted(IMAGES | INDEXES))
_REDIRECTS: Final = {301, 302, 303, 307, 308}
_USER_AGENT: Final = "pierhead"


@dataclass(slots=True)
class HttpUpstreams:
    """All other registries. It remembers their tokens, until shortly before the end of each.

    `may_ask` says which addresses everybody may send builds to; `patience`, how many seconds all
    in all a registry is waited for that has sent so many bytes.
    """

    may_ask: Callable[[Address], bool] = is_public
    patience: Callable[[int], float] = patience_seconds
    _tokens: dict[tuple[str, str, str], tuple[str, float]] = field(default_factory=dict)
    _contexts: dict[str | None, ssl.SSLContext] = field(default_factory=dict)

    async def try_login(self, upstream: Upstream) -> LoginKind:
        """Log in, and return how; `open`: nobody was asked for a login."""
        url = f"{_base(upstream)}/v2/"
        async with self._request(upstream, "GET", url, {}) as answer:
            if answer.status_code != 401:
                if answer.status_code != 404 or upstream.secret is not None:
                    _check_ping(answer, upstream)
                return "open"  # what is no registry may still give out the tokens of one
            wanted = challenge(answer.headers.get_list("www-authenticate"))
        if wanted is None:
            raise UpstreamSilent(f"{upstream.host} wants a kind of login that is not known here")
        if upstream.secret is None and wanted.scheme == "basic":
            raise _closed(upstream)
        said = await self._authorization(upstream, wanted, scope="")
        async with self._request(upstream, "GET", url, {"Authorization": said}) as answer:
            if answer.status_code in {401, 403} and upstream.secret is not None:
                raise _wrong_login(upstream)
            if answer.status_code != 401:  # a token of nobody's opens no more than public images
                _check_ping(answer, upstream)
        return "basic" if wanted.scheme == "basic" else "token"

    async def digest(self, upstream: Upstream, image: Image) -> str | None:
        """Return what a manifest's digest is said to be; none: that is not said."""
        path = f"/v2/{image.name}/manifests/{image.reference}"
        async with self._ask(upstream, "HEAD", path, image.name, str(image)) as answer:
            said: str | None = answer.headers.get("docker-content-digest")
            return said

    async def manifest(self, upstream: Upstream, image: Image) -> tuple[str, bytes, str | None]:
        """Return the media type, the bytes, and the digest that they are said to have."""
        path = f"/v2/{image.name}/manifests/{image.reference}"
        async with self._ask(upstream, "GET", path, image.name, str(image)) as answer:
            body = await self._whole(
                answer, upstream.host, f"the manifest of {image}", MANIFEST_BYTES_MAX
            )
            kind = answer.headers.get("content-type", "")
            return kind, body, answer.headers.get("docker-content-digest")

    async def blob_size(self, upstream: Upstream, name: str, digest: str) -> int | None:
        """Return the size of a blob that may be had; none: it is there, and that is not said."""
        path, what = f"/v2/{name}/blobs/{digest}", f"{upstream.host}/{name}@{digest}"
        async with self._ask(upstream, "HEAD", path, name, what) as answer:
            return _length(answer)

    @asynccontextmanager
    async def blob(
        self, upstream: Upstream, name: str, digest: str, bound: Bound
    ) -> AsyncIterator[UpstreamBlob]:
        """Give a blob, of which no more comes than the bound."""
        path, what = f"/v2/{name}/blobs/{digest}", f"{upstream.host}/{name}@{digest}"
        async with self._ask(upstream, "GET", path, name, what) as answer:
            size = _length(answer)
            if size is not None and size > bound.size_bytes:
                raise bound.exceeded(upstream.host, what)
            chunks = self._chunks(answer, upstream.host, what, bound)
            yield UpstreamBlob(size_bytes=size, chunks=chunks)

    @asynccontextmanager
    async def _ask(
        self, upstream: Upstream, method: str, path: str, name: str, what: str
    ) -> AsyncIterator[httpx.Response]:
        """Give the answer to a request that succeeded, logged in if that is wanted."""
        url, scope = _base(upstream) + path, f"repository:{name}:pull"
        known = self._token(upstream, scope)
        headers = {"Accept": _ACCEPT} if "/manifests/" in path else {}
        with_login = {**headers, "Authorization": known} if known else headers
        async with self._request(upstream, method, url, with_login) as answer:
            if answer.status_code != 401:
                _check(answer, upstream, what)
                yield answer
                return
            wanted = challenge(answer.headers.get_list("www-authenticate"))
        if wanted is None or (wanted.scheme == "basic" and upstream.secret is None):
            raise _denied(upstream, what)
        headers["Authorization"] = await self._authorization(upstream, wanted, scope)
        async with self._request(upstream, method, url, headers) as answer:
            if answer.status_code == 401 and upstream.secret is not None:
                raise _wrong_login(upstream)
            _check(answer, upstream, what)
            yield answer

    # Logins.

    async def _authorization(self, upstream: Upstream, wanted: Challenge, scope: str) -> str:
        """Return what answers a challenge, and remember it."""
        if wanted.scheme == "basic":
            said, seconds = _basic(upstream), token_seconds(None)
        else:
            token, seconds = await self._fetch_token(upstream, wanted, scope)
            said = f"Bearer {token}"
        if len(self._tokens) >= TOKENS_MAX:
            self._tokens.clear()
        self._tokens[upstream.host, upstream.scope, scope] = (said, time.monotonic() + seconds)
        return said

    def _token(self, upstream: Upstream, scope: str) -> str | None:
        said, until = self._tokens.get((upstream.host, upstream.scope, scope), ("", 0.0))
        return said if time.monotonic() < until else None

    async def _fetch_token(
        self, upstream: Upstream, wanted: Challenge, scope: str
    ) -> tuple[str, float]:
        """Ask where the registry says for a token (Docker's token flow)."""
        query = {"service": wanted.service, "scope": scope}
        asked = urlencode({key: value for key, value in query.items() if value})
        url = wanted.realm + ("&" if "?" in wanted.realm else "?") + asked
        _require_safe(upstream, url, "has its tokens given out")
        headers = {"Authorization": _basic(upstream)} if upstream.secret is not None else {}
        async with self._request(upstream, "GET", url, headers) as answer:
            if answer.status_code in {400, 401, 403} and upstream.secret is not None:
                raise _wrong_login(upstream)
            if answer.status_code in {401, 403}:
                raise _denied(upstream, scope.split(":")[1]) if scope else _closed(upstream)
            _check_token(answer, upstream, url)
            body = await self._whole(answer, upstream.host, "a token", TOKEN_BYTES_MAX)
        try:
            found = msgspec.json.decode(body)
            token = found.get("token") or found["access_token"]
            usable = isinstance(token, str) and token.isascii() and token.isprintable()
        except (msgspec.DecodeError, KeyError, AttributeError):
            token, usable = "", False
        if not usable:
            raise UpstreamSilent(f"{upstream.host} gave no token that can be used")
        return token, token_seconds(found.get("expires_in"))

    # Connections.

    @asynccontextmanager
    async def _request(
        self, upstream: Upstream, method: str, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Give the answer to a request, with its body still to be read."""
        first = urlsplit(url)
        headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers}
        for _ in range(REDIRECTS_MAX + 1):
            if (urlsplit(url).scheme, urlsplit(url).netloc) != (first.scheme, first.netloc):
                headers = {key: headers[key] for key in headers if key != "Authorization"}
            async with self._one(upstream, method, url, headers) as answer:
                target = answer.headers.get("location")
                if answer.status_code not in _REDIRECTS or not target:
                    yield answer
                    return
                url = _followed(upstream, url, target)
        raise UpstreamSilent(f"{upstream.host} sends from one address to the next, without end")

    @asynccontextmanager
    async def _one(
        self, upstream: Upstream, method: str, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Send one request on a connection of its own, to an address that is allowed."""
        proxy = _proxy(url)
        addresses = await self._addresses(upstream, url, proxied=proxy is not None)
        host = httpx.URL(url).netloc.decode("ascii")
        name = urlsplit(url).hostname or ""
        timeout = httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)
        verify = self._context(upstream, url)
        async with httpx.AsyncClient(
            verify=verify, proxy=proxy, trust_env=False, timeout=timeout
        ) as http:
            for number, address in enumerate(addresses):
                request = http.build_request(
                    method,
                    _at(url, address),
                    headers={**headers, "Host": host},
                    extensions={"sni_hostname": name, "timeout": timeout.as_dict()},
                )
                try:
                    async with asyncio.timeout(CONNECT_SECONDS + SILENT_SECONDS):
                        answer = await http.send(request, stream=True)
                except httpx.ConnectError as error:
                    if number + 1 < len(addresses) and distrusted(error) is None:
                        continue
                    raise _unreachable(upstream, error) from error
                except (httpx.HTTPError, TimeoutError) as error:
                    raise _unreachable(upstream, error) from error
                try:
                    yield answer
                finally:
                    await answer.aclose()
                return

    # Bodies: as they come, for whoever is asked not to unpack them sends no small bomb either.

    async def _whole(self, answer: httpx.Response, host: str, what: str, limit: int) -> bytes:
        bound = Bound(size_bytes=limit, why="that are taken of it")
        return b"".join([chunk async for chunk in self._chunks(answer, host, what, bound)])

    async def _chunks(
        self, answer: httpx.Response, host: str, what: str, bound: Bound
    ) -> AsyncIterator[bytes]:
        """Yield what comes, piece by piece as it came: what is too much shows at once.

        Only time in which the registry is waited for counts against it.
        """
        arrived, waited, pieces = 0, 0.0, answer.aiter_raw()
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self.patience(arrived) - waited):
                    piece = await anext(pieces, b"")
            except httpx.HTTPError as error:
                raise UpstreamSilent(f"{host} broke off: {_reason(error)}") from error
            except TimeoutError as error:
                detail = f"{host} sends {what} too slowly: {arrived} bytes in {waited:.0f} s"
                raise UpstreamSilent(detail, hint="build again, or nearer to it") from error
            if not piece:
                return
            waited += time.monotonic() - began
            arrived += len(piece)
            if arrived > bound.size_bytes:
                raise bound.exceeded(host, what)
            yield piece

    async def _addresses(
        self, upstream: Upstream, url: str, *, proxied: bool
    ) -> list[Address | None]:
        """Return where to connect to: each address is allowed. None: by the name itself.

        Raises:
            HostNotAllowed: one is in a private network, and the owner did not add the host.
        """
        parts = urlsplit(url)
        name, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        literal = _literal(name)
        if _is_named(upstream.allowed, name, port) or (literal is None and proxied):
            return [None]  # a proxy knows names that nobody here can resolve, and decides by itself
        found = [literal] if literal is not None else await _resolved(upstream, name, port)
        if not all(self.may_ask(address) for address in found):
            plainly = " --plain-http" if parts.scheme == "http" else ""
            hint = f"the owner can allow it: pierhead registries add {_where(url)}{plainly}"
            raise HostNotAllowed(f"{name} is in a private network", hint=hint)
        return [*found]

    def _context(self, upstream: Upstream, url: str) -> ssl.SSLContext:
        """Return what verifies a registry; its own authority counts for itself alone."""
        own = urlsplit(url).hostname == host_name(upstream.host)
        ca = upstream.ca if own else None
        if ca not in self._contexts:
            try:
                self._contexts[ca] = tls_context(ca)
            except (ssl.SSLError, ValueError, TypeError) as error:
                hint = "give the registry's authority as PEM: --ca-file FILE"
                raise InvalidRequest("the authority is no certificate", hint=hint) from error
        return self._contexts[ca]


def _base(upstream: Upstream) -> str:
    return f"{'http' if upstream.plain_http else 'https'}://{endpoint(upstream.host)}"


def _basic(upstream: Upstream) -> str:
    assert upstream.secret is not None
    pair = f"{upstream.username or ''}:{upstream.secret}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _proxy(url: str) -> str | None:
    return proxy_for(url, os.environ)


def _is_named(hosts: frozenset[str], name: str, port: int) -> bool:
    """Say whether a host is among those that the owner named: this very one, with its port."""
    return bool({f"{name}:{port}", *([name] if port in {80, 443} else [])} & hosts)


def _where(url: str) -> str:
    """Return the host of a URL as registries are named, with its port if that is not the usual."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _require_safe(upstream: Upstream, url: str, does: str) -> None:
    """Look at where a registry sends to, before anybody goes there.

    Raises:
        UpstreamSilent: that is no address.
        HostNotAllowed: it is one without TLS, of which the owner did not say so.
    """
    try:
        parts = urlsplit(url)
        httpx.URL(url)
        usable = bool(parts.hostname) and parts.port != 0 and parts.username is None
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable or parts.scheme not in {"https", "http"}:
        raise UpstreamSilent(f"{upstream.host} {does} at no address that can be used")
    plain = upstream.plain | ({upstream.host} if upstream.plain_http else set())
    if parts.scheme == "http" and not _is_named(plain, parts.hostname or "", parts.port or 80):
        detail = (
            f"{upstream.host} {does} at {_where(url)} by plain HTTP, which is not allowed there"
        )
        hint = f"the owner can allow it: pierhead registries add {_where(url)} --plain-http"
        raise HostNotAllowed(detail, hint=hint)


async def _resolved(upstream: Upstream, name: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise _away(upstream, f"the name {name} leads nowhere") from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def _literal(name: str) -> Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _at(url: str, address: Address | None) -> str:
    """Return a URL with its host's address in the place of its name."""
    if address is None:
        return url
    parts = urlsplit(url)
    host = f"[{address}]" if address.version == 6 else str(address)
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=host + port).geturl()


def _followed(upstream: Upstream, url: str, target: str) -> str:
    """Return where a redirect leads to, if that is safe."""
    try:
        found = urljoin(url, target)
    except ValueError:
        found = ""
    _require_safe(upstream, found, "has what is asked for")
    return found


def _check(answer: httpx.Response, upstream: Upstream, what: str) -> None:
    """Raise what an answer that is no success means."""
    status = answer.status_code
    if status == 200:
        return
    if status in {401, 403}:
        raise _denied(upstream, what)
    if status == 404:
        hint = "check the name and the tag after FROM"
        raise UpstreamMissing(f"{upstream.host} has no {what} ({_as_whom(upstream)})", hint=hint)
    if status == 429:
        detail = f"{upstream.host} does not let this control plane pull more for now"
        raise UpstreamBusy(f"{detail} ({_as_whom(upstream)})", hint="wait, then build again")
    raise UpstreamSilent(f"{upstream.host} answers with status {status}, not with {what}")


def _check_ping(answer: httpx.Response, upstream: Upstream) -> None:
    """Raise what it means that a registry does not say it is one."""
    if answer.status_code == 404:
        hint = "is the name right, and its port?"
        raise UpstreamSilent(f"{upstream.host} is no registry: it has no /v2/", hint=hint)
    if answer.status_code in {401, 403}:
        raise _closed(upstream)
    _check(answer, upstream, "/v2/")


def _check_token(answer: httpx.Response, upstream: Upstream, url: str) -> None:
    """Raise what it means that no token comes from where a registry says that they are."""
    if answer.status_code in {200, 429}:
        return _check(answer, upstream, "a token")
    detail = f"no token for {upstream.host} could be had from {_where(url)}"
    hint = f"ask whoever runs {upstream.host}; is its name right?"
    raise UpstreamSilent(f"{detail}, which answers with status {answer.status_code}", hint=hint)


def _closed(upstream: Upstream) -> UpstreamRefused:
    if upstream.secret is not None:
        return _wrong_login(upstream)
    hint = f"say as whom: pierhead registries add {upstream.host} --username NAME"
    return UpstreamRefused(f"{upstream.host} lets nobody in without a login", hint=hint)


def _denied(upstream: Upstream, what: str) -> UpstreamRefused:
    detail = f"{upstream.host} does not give {what}: it is private, or not there"
    hint = f"check the name, or log in: pierhead registries add {upstream.host} --username NAME"
    if upstream.secret is not None:
        hint = "check the name, and what that login may pull"
    return UpstreamRefused(f"{detail} ({_as_whom(upstream)})", hint=hint)


def _wrong_login(upstream: Upstream) -> UpstreamRefused:
    detail = f"{upstream.host} does not accept the login of {upstream.username}"
    hint = f"give it again: pierhead registries add {upstream.host} --username NAME"
    return UpstreamRefused(detail, hint=hint)


def _as_whom(upstream: Upstream) -> str:
    return f"asked as {upstream.username}" if upstream.secret else "asked without a login"


def _unreachable(upstream: Upstream, error: Exception) -> UpstreamSilent:
    if (reason := distrusted(error)) is not None:
        detail = f"the certificate of {upstream.host} is not to be trusted: {reason}"
        hint = f"if it has an authority of its own: pierhead registries add {upstream.host} "
        return UpstreamSilent(detail, hint=hint + "--ca-file FILE")
    if isinstance(error, httpx.ReadTimeout | TimeoutError):
        seconds = SILENT_SECONDS + (CONNECT_SECONDS if isinstance(error, TimeoutError) else 0)
        detail = f"{upstream.host} did not answer within {seconds:.0f} s"
        return UpstreamSilent(detail, hint="build again; whoever runs it may know why")
    why = _reason(error)
    if "WRONG_VERSION_NUMBER" in why:  # OpenSSL's word for an answer that is not TLS
        detail = f"{upstream.host} does not speak TLS"
        hint = f"in a network you trust: pierhead registries add {upstream.host} --plain-http"
        return UpstreamSilent(detail, hint=hint)
    return _away(upstream, why)


def _reason(error: Exception) -> str:
    """Return what happened, in words: libraries have none for what is not the system's."""
    match error:
        case httpx.ConnectTimeout():
            return f"nobody took the connection within {CONNECT_SECONDS:.0f} s"
        case httpx.ReadTimeout():
            return f"nothing came for {SILENT_SECONDS:.0f} s"
        case httpx.WriteTimeout():
            return f"it took nothing for {SILENT_SECONDS:.0f} s"
        case httpx.ReadError() | httpx.WriteError() | httpx.CloseError() if not str(error):
            return "the connection was cut"
    return str(error) or "it does not speak HTTP"


def _away(upstream: Upstream, why: str) -> UpstreamSilent:
    detail = f"{upstream.host} cannot be reached from the control plane: {why}"
    return UpstreamSilent(detail, hint="is the name right, and is it online?")


def _length(answer: httpx.Response) -> int | None:
    said = answer.headers.get("content-length", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else None
