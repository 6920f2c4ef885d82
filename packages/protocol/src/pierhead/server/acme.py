"""Gets a certificate for a public name from an ACME server (RFC 8555). No files, no clock.

Every request is signed with the account's key and carries a nonce of the server; a nonce that the
server does not like is replaced and the request sent again. What proves that the name is ours is
shown by whoever calls, in one of two ways: a file over HTTP, or a certificate in a TLS handshake
(RFC 8737).
"""

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from pierhead.protocol.client.failure import reason
from pierhead.protocol.client.proxy import proxy_for
from pierhead.protocol.client.trust import tls_context
from pierhead.protocol.loopback import is_loopback
from pierhead.server.authority import Pair, key_pem

Kind: TypeAlias = Literal["http-01", "tls-alpn-01"]
ANSWER_BYTES_MAX: Final = 256 * 1024
CALL_SECONDS: Final = 30.0  # in which nothing comes
ANSWER_SECONDS_MAX: Final = 120.0
# From the order to the certificate; a server that takes longer is asked again later.
ORDER_SECONDS: Final = 300.0
POLL_SECONDS: Final = 1.0
POLL_SECONDS_MAX: Final = 20.0
NONCES_MAX: Final = 5
_ERROR: Final = "urn:ietf:params:acme:error:"


class AcmeError(Exception):
    """There is no certificate, and why. `retry_after`: seconds that the server wants to have."""

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What has to be shown where the name leads to, until the order is through."""

    kind: Kind
    domain: str
    token: str
    authorization: str  # "key authorization" of RFC 8555, section 8.1

    @property
    def digest(self) -> bytes:
        """What the certificate of a TLS handshake holds (RFC 8737, section 3)."""
        return hashlib.sha256(self.authorization.encode()).digest()


Show: TypeAlias = Callable[[Proof], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def open_acme(directory: str, key: ec.EllipticCurvePrivateKey) -> AsyncIterator["Acme"]:
    """Speak with a server, as the account that has the key; it is made if it is not there.

    Raises:
        AcmeError: nobody answers there as an ACME server does.
    """
    url = httpx.URL(directory)
    if url.scheme != "https" and not is_loopback(url.host):
        raise AcmeError(f"an ACME server is asked over TLS, not at {directory}")
    proxy = proxy_for(directory, os.environ)
    timeout = httpx.Timeout(CALL_SECONDS)
    async with httpx.AsyncClient(
        headers={"Accept-Encoding": "identity"},  # what is packed all the same is not unpacked
        verify=tls_context(None),
        proxy=proxy,
        trust_env=False,
        timeout=timeout,
    ) as http:
        acme = Acme(http, key)
        await acme.begin(directory)
        yield acme


class Acme:
    """One conversation with one server."""

    def __init__(self, http: httpx.AsyncClient, key: ec.EllipticCurvePrivateKey) -> None:
        self._http = http
        self._key = key
        self._paths: dict[str, str] = {}
        self._account: str | None = None
        self._nonce: str | None = None

    async def begin(self, directory: str) -> None:
        """Learn the server's paths, and get the account."""
        answer = await self._read(self._http.build_request("GET", directory))
        found = _document(answer)
        names = ("newNonce", "newAccount", "newOrder")
        self._paths = {name: _text(found, name) for name in names}
        made = await self._send(self._paths["newAccount"], {"termsOfServiceAgreed": True})
        self._account = _header(made, "location")

    async def obtain(self, domain: str, kind: Kind, show: Show) -> Pair:
        """Return a new key and the certificate for it, with what vouches for that.

        Raises:
            AcmeError: there is none, now.
        """
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                return await self._obtain(domain, kind, show)
        except TimeoutError as error:
            raise AcmeError(f"no certificate came within {ORDER_SECONDS:.0f} s") from error

    async def _obtain(self, domain: str, kind: Kind, show: Show) -> Pair:
        wanted = {"identifiers": [{"type": "dns", "value": domain}]}
        ordered = await self._send(self._paths["newOrder"], wanted)
        place, order = _header(ordered, "location"), _document(ordered)
        for url in _texts(order, "authorizations"):
            await self._prove(url, domain, kind, show)
        order = await self._until(place, {"ready", "valid"})
        key = ec.generate_private_key(ec.SECP256R1())
        if order["status"] == "ready":
            request = _base64(_signing_request(key, domain))
            await self._send(_text(order, "finalize"), {"csr": request})
        order = await self._until(place, {"valid"})
        chain = (await self._send(_text(order, "certificate"), None)).content
        return Pair(key_pem(key), _checked(chain, key, domain))

    async def _prove(self, url: str, domain: str, kind: Kind, show: Show) -> None:
        found = _document(await self._send(url, None))
        if found.get("status") == "valid":
            return
        offered = [one for one in found.get("challenges", ()) if isinstance(one, dict)]
        challenge = next((one for one in offered if one.get("type") == kind), None)
        if challenge is None:
            raise AcmeError(f"the server does not offer {kind} for {domain}")
        token = _text(challenge, "token")
        if not token.replace("-", "").replace("_", "").isalnum():
            raise AcmeError("the server's token is not one")
        authorization = f"{token}.{thumbprint(self._key)}"
        proof = Proof(kind=kind, domain=domain, token=token, authorization=authorization)
        async with show(proof):
            await self._send(_text(challenge, "url"), {})
            await self._until(url, {"valid"})

    async def _until(self, url: str, states: set[str]) -> dict[str, Any]:
        """Ask until the thing is in one of the states."""
        wait = POLL_SECONDS
        while True:
            answer = await self._send(url, None)
            found = _document(answer)
            if found.get("status") in states:
                return found
            if found.get("status") == "invalid":
                raise AcmeError(_why_invalid(found))
            await asyncio.sleep(_retry_after(answer) or wait)
            wait = min(wait * 2, POLL_SECONDS_MAX)

    async def _send(self, url: str, payload: dict[str, Any] | None) -> "_Answer":
        """Send a signed request; a payload of none asks for what is there (POST-as-GET)."""
        for _ in range(NONCES_MAX):
            nonce = self._nonce or await self._fresh_nonce()
            self._nonce = None
            body = self._signed(url, nonce, payload)
            headers = {"Content-Type": "application/jose+json"}
            answer = await self._read(
                self._http.build_request("POST", url, content=body, headers=headers)
            )
            self._nonce = answer.headers.get("replay-nonce")
            if answer.status < 400:
                return answer
            if _problem(answer).get("type") != _ERROR + "badNonce":
                break
        problem = _problem(answer)
        said = str(problem.get("detail") or problem.get("type") or f"HTTP {answer.status}")
        raise AcmeError(f"the server says: {said[:500]}", retry_after=_retry_after(answer))

    def _signed(self, url: str, nonce: str, payload: dict[str, Any] | None) -> bytes:
        """Return a request as RFC 8555, section 6.2 wants it: a flattened JWS by ES256."""
        who = {"kid": self._account} if self._account else {"jwk": jwk(self._key)}
        head = _base64(json.dumps({"alg": "ES256", "nonce": nonce, "url": url, **who}).encode())
        body = "" if payload is None else _base64(json.dumps(payload).encode())
        der = self._key.sign(f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256()))
        signature = _base64(b"".join(number.to_bytes(32) for number in decode_dss_signature(der)))
        return json.dumps({"protected": head, "payload": body, "signature": signature}).encode()

    async def _fresh_nonce(self) -> str:
        answer = await self._read(self._http.build_request("HEAD", self._paths["newNonce"]))
        return _header(answer, "replay-nonce")

    async def _read(self, request: httpx.Request) -> "_Answer":
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                response = await self._http.send(request, stream=True)
                try:
                    content = b""
                    async for chunk in response.aiter_raw():
                        content += chunk
                        if len(content) > ANSWER_BYTES_MAX:
                            raise AcmeError("the server's answer is too large")
                finally:
                    await response.aclose()
        except httpx.HTTPError as error:
            raise AcmeError(f"no answer from {request.url.host}: {reason(error)}") from error
        except TimeoutError as error:
            raise AcmeError(f"no answer from {request.url.host}: it takes too long") from error
        return _Answer(response.status_code, dict(response.headers), content)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: dict[str, str]
    content: bytes


def jwk(key: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """Return a public key as JSON (RFC 7518, section 6.2.1)."""
    numbers = key.public_key().public_numbers()
    x, y = (_base64(number.to_bytes(32)) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def thumbprint(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the thumbprint of a public key (RFC 7638)."""
    plain = json.dumps(jwk(key), sort_keys=True, separators=(",", ":"))
    return _base64(hashlib.sha256(plain.encode()).digest())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _signing_request(key: ec.EllipticCurvePrivateKey, domain: str) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, domain)] if len(domain) <= 64 else [])
    names = x509.SubjectAlternativeName([x509.DNSName(domain)])
    builder = x509.CertificateSigningRequestBuilder(name).add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def _checked(chain: bytes, key: ec.EllipticCurvePrivateKey, domain: str) -> bytes:
    """Return a chain (PEM) if its first certificate is for the key and the name."""
    try:
        first, *others = x509.load_pem_x509_certificates(chain)
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise AcmeError("what the server gave is no certificate") from error
    fits = first.public_key() == key.public_key()
    if not fits or domain not in names.get_values_for_type(x509.DNSName):
        raise AcmeError("the server gave a certificate for something else")
    return b"".join(one.public_bytes(Encoding.PEM) for one in (first, *others))


def _document(answer: _Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        found = None
    if answer.status >= 400 or not isinstance(found, dict):
        raise AcmeError(f"HTTP {answer.status} from something that is not an ACME server")
    return found


def _problem(answer: _Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _why_invalid(found: dict[str, Any]) -> str:
    errors = [found.get("error"), *(one.get("error") for one in found.get("challenges", ()))]
    details = [str(error.get("detail", "")) for error in errors if isinstance(error, dict)]
    return f"the server could not check the name: {' '.join(filter(None, details))[:500]}"


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise AcmeError(f"the server's answer has no {name}")
    return value


def _texts(found: dict[str, Any], name: str) -> list[str]:
    values = found.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise AcmeError(f"the server's answer has no {name}")
    return values


def _header(answer: _Answer, name: str) -> str:
    if name not in answer.headers:
        raise AcmeError(f"the server's answer has no {name}")
    return answer.headers[name]


def _retry_after(answer: _Answer) -> float | None:
    said = answer.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 8 else None
