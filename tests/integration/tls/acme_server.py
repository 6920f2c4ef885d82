"""A strict ACME server (RFC 8555): it checks every signature, nonce and name, and comes to see.

It is asked over TLS, by a certificate of its own authority. A challenge is checked as a public
authority would do it, but for the names, which all lead to loopback.
"""

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import json
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from pierhead.server.authority import Pair, issue, new_authority

ACME = "urn:ietf:params:acme:error:"
EXTENSION = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")
SAME_LENGTH = 32


class Problem(Exception):
    """A refusal."""

    def __init__(self, kind: str, detail: str = "", status: int = 400, retry: int = 0) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.status, self.retry = kind, detail, status, retry


@dataclass(slots=True)
class Order:
    account: str
    domain: str
    token: str
    checked: str = "pending"
    error: str = ""
    chain: bytes = b""


@dataclass(slots=True)
class AcmeServer:
    """What it knows, and what happened."""

    authority: Pair
    tls_port: int  # where `tls-alpn-01` is checked
    web_port: int  # where `http-01` is checked
    lifetime: timedelta = timedelta(days=90)
    bad_nonces: int = 0  # so many requests are told that their nonce is bad
    refusals: list[Problem] = field(default_factory=list)  # of the next orders
    url: str = ""
    nonces: set[str] = field(default_factory=set)
    accounts: dict[str, dict[str, str]] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    # The wire.

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split()
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                writer.write(await self._answer(method, path, headers, body))
                await writer.drain()
        writer.close()

    async def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        self.log.append(f"{method} {path}")
        status, extra = 200, dict[str, str]()
        try:
            status, extra, found = await self._act(method, path, headers, body)
        except Problem as problem:
            status, kind = problem.status, "application/problem+json"
            content = json.dumps({"type": ACME + problem.kind, "detail": problem.detail}).encode()
            extra = {"Retry-After": str(problem.retry)} if problem.retry else {}
        else:
            raw = isinstance(found, bytes)
            kind = "application/pem-certificate-chain" if raw else "application/json"
            content = found if isinstance(found, bytes) else json.dumps(found).encode()
        nonce = secrets.token_urlsafe(16)
        self.nonces.add(nonce)
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Replay-Nonce: {nonce}"]
        lines += [f"{name}: {value}" for name, value in extra.items()]
        lines.append(f"Content-Length: {len(content)}")
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        return head if method == "HEAD" else head + content

    async def _act(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], Any]:
        if (method, path) == ("GET", "/directory"):
            names = ("newNonce", "newAccount", "newOrder")
            return 200, {}, {name: f"{self.url}/{name}" for name in names}
        if (method, path) == ("HEAD", "/newNonce"):
            return 200, {"Cache-Control": "no-store"}, {}
        if method != "POST":
            raise Problem("malformed", "everything else is a POST", 405)
        if headers.get("content-type") != "application/jose+json":
            raise Problem("malformed", "not jose+json", 415)
        account, payload = self._verified(path, json.loads(body))
        if path == "/newAccount":
            return self._account(account, payload)
        if path == "/newOrder":
            return self._new_order(account, payload)
        kind, number = path.strip("/").split("/")
        order = self.orders[int(number)]
        if order.account != account:
            raise Problem("unauthorized", "not the account of this order", 403)
        if kind == "challenge":
            assert payload == {}
            await self._check(order)
            return 200, {}, {"status": "processing"}
        if kind == "finalize":
            return self._finalize(order, payload, number)
        if payload is not None:
            raise Problem("malformed", "this is asked for by POST-as-GET")
        if kind == "certificate":
            return 200, {}, order.chain
        shown = self._order(order, number) if kind == "order" else self._proof(order, number)
        return 200, {"Retry-After": "1"} if shown["status"] == "pending" else {}, shown

    # Who asks.

    def _verified(self, path: str, jws: dict[str, str]) -> tuple[str, Any]:
        head = json.loads(decoded(jws["protected"]))
        if head["alg"] != "ES256" or head["url"] != self.url + path:
            raise Problem("unauthorized", "another algorithm, or for another URL", 403)
        if head["nonce"] not in self.nonces:
            raise Problem("badNonce", "used, or never given")
        self.nonces.remove(head["nonce"])
        if self.bad_nonces:
            self.bad_nonces -= 1
            raise Problem("badNonce", "not today")
        if ("jwk" in head) == ("kid" in head) or ("jwk" in head) != (path == "/newAccount"):
            raise Problem("malformed", "jwk for a new account, kid for all else")
        key = head["jwk"] if "jwk" in head else self.accounts[head["kid"]]
        signature = decoded(jws["signature"])
        numbers = [int.from_bytes(signature[at : at + 32]) for at in (0, 32)]
        signed = f"{jws['protected']}.{jws['payload']}".encode()
        try:
            public_key(key).verify(
                encode_dss_signature(*numbers), signed, ec.ECDSA(hashes.SHA256())
            )
        except InvalidSignature as error:
            raise Problem("malformed", "the signature is not of this key", 403) from error
        who = self._place(key) if "jwk" in head else head["kid"]
        if "jwk" in head:
            self.accounts.setdefault(who, key)
        return who, json.loads(decoded(jws["payload"])) if jws["payload"] else None

    def _place(self, key: dict[str, str]) -> str:
        return f"{self.url}/account/{thumbprint(key)[:16]}"

    def _account(self, who: str, payload: Any) -> tuple[int, dict[str, str], Any]:
        if payload.get("termsOfServiceAgreed") is not True:
            raise Problem("userActionRequired", "the terms have to be agreed to", 403)
        return 201, {"Location": who}, {"status": "valid"}

    # What is asked for.

    def _new_order(self, who: str, payload: Any) -> tuple[int, dict[str, str], Any]:
        if self.refusals:
            raise self.refusals.pop(0)
        (identifier,) = payload["identifiers"]
        assert identifier["type"] == "dns"
        number = str(len(self.orders))
        self.orders.append(Order(who, identifier["value"], secrets.token_urlsafe(24)))
        place = {"Location": f"{self.url}/order/{number}"}
        return 201, place, self._order(self.orders[-1], number)

    def _order(self, order: Order, number: str) -> dict[str, Any]:
        states = {"valid": "ready", "pending": "pending", "invalid": "invalid"}
        found = {
            "status": "valid" if order.chain else states[order.checked],
            "authorizations": [f"{self.url}/authorization/{number}"],
            "finalize": f"{self.url}/finalize/{number}",
        }
        if order.chain:
            found["certificate"] = f"{self.url}/certificate/{number}"
        return found

    def _proof(self, order: Order, number: str) -> dict[str, Any]:
        kinds = [
            kind
            for kind, port in (("tls-alpn-01", self.tls_port), ("http-01", self.web_port))
            if port
        ]
        error = {"error": {"detail": order.error}} if order.error else {}
        return {
            "status": order.checked,
            "challenges": [
                {"type": kind, "url": f"{self.url}/challenge/{number}", "token": order.token}
                | error
                for kind in kinds
            ],
        }

    async def _check(self, order: Order) -> None:
        """Come and see; only one of the ways is open in each test."""
        key = self.accounts[order.account]
        expected = f"{order.token}.{thumbprint(key)}"
        try:
            if self.tls_port:
                await asyncio.to_thread(self._check_handshake, order, expected)
            else:
                await asyncio.to_thread(self._check_file, order, expected)
            order.checked = "valid"
        except (OSError, AssertionError, ValueError) as error:
            order.checked, order.error = "invalid", f"{order.domain}: {error}"

    def _check_handshake(self, order: Order, expected: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["acme-tls/1"])
        plain = socket.create_connection(("127.0.0.1", self.tls_port), timeout=60)
        with plain, context.wrap_socket(plain, server_hostname=order.domain) as secure:
            assert secure.selected_alpn_protocol() == "acme-tls/1", "another protocol"
            der = secure.getpeercert(binary_form=True)
        assert der is not None
        shown = x509.load_der_x509_certificate(der).extensions
        names = shown.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(names) == [x509.DNSName(order.domain)], "another name"
        proof = shown.get_extension_for_oid(EXTENSION)
        assert proof.critical
        assert isinstance(proof.value, x509.UnrecognizedExtension)
        assert proof.value.value == b"\x04\x20" + hashlib.sha256(expected.encode()).digest()

    def _check_file(self, order: Order, expected: str) -> None:
        path = f"/.well-known/acme-challenge/{order.token}"
        with socket.create_connection(("127.0.0.1", self.web_port), timeout=60) as plain:
            plain.sendall(f"GET {path} HTTP/1.1\r\nHost: {order.domain}\r\n\r\n".encode())
            said = b""
            while data := plain.recv(65536):
                said += data
        assert said.startswith(b"HTTP/1.1 200 "), "no such file"
        assert said.endswith(b"\r\n\r\n" + expected.encode()), "another file"

    def _finalize(self, order: Order, payload: Any, number: str) -> tuple[int, dict[str, str], Any]:
        if order.checked != "valid":
            raise Problem("orderNotReady", "not checked", 403)
        request = x509.load_der_x509_csr(decoded(payload["csr"]))
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if not request.is_signature_valid or list(names) != [x509.DNSName(order.domain)]:
            raise Problem("badCSR", "not for this name")
        if request.public_key() == public_key(self.accounts[order.account]):
            raise Problem("badCSR", "a key of its own is wanted")
        order.chain = self._signed(request, order.domain) + self.authority.certificate
        return 200, {}, self._order(order, number)

    def _signed(self, request: x509.CertificateSigningRequest, domain: str) -> bytes:
        issuer = x509.load_pem_x509_certificate(self.authority.certificate)
        key = load_pem_private_key(self.authority.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        public = request.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(issuer.subject, request.subject, public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + self.lifetime)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(domain)]), critical=False)
        )
        return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def decoded(text: str) -> bytes:
    assert "=" not in text, "base64url is without padding here"
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def thumbprint(key: dict[str, str]) -> str:
    known = {name: key[name] for name in ("crv", "kty", "x", "y")}
    plain = json.dumps(known, separators=(",", ":"))
    digest = hashlib.sha256(plain.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def public_key(key: dict[str, str]) -> ec.EllipticCurvePublicKey:
    x, y = decoded(key["x"]), decoded(key["y"])
    assert len(x) == len(y) == SAME_LENGTH
    numbers = (int.from_bytes(x), int.from_bytes(y))
    return ec.EllipticCurvePublicNumbers(*numbers, ec.SECP256R1()).public_key()


@asynccontextmanager
async def acme_server(
    folder: Path, *, tls_port: int = 0, web_port: int = 0
) -> AsyncIterator[AcmeServer]:
    """Run a server on loopback; `folder/acme.crt` is its authority."""
    authority = new_authority("test authority", now=datetime.now(UTC))
    own = issue(authority, [str(ipaddress.ip_address("127.0.0.1"))], now=datetime.now(UTC))
    (folder / "acme.pem").write_bytes(own.pem)
    (folder / "acme.crt").write_bytes(authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "acme.pem")
    acme = AcmeServer(authority, tls_port, web_port)
    server = await asyncio.start_server(acme.serve_one, "127.0.0.1", 0, ssl=context)
    acme.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield acme
    finally:
        server.close()
