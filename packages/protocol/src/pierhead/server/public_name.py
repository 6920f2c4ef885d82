"""The certificate of a public name: got by ACME, renewed while the server runs.

Files, beside those of the own authority: `account.pem` (the account's key), `domain.pem` (key and
chain), `domain.txt` (how it went the last time, for people).
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from pierhead.server.acme import AcmeError, Kind, Proof, open_acme
from pierhead.server.authority import Pair, is_due, key_pem
from pierhead.server.handshake import DOMAIN_FILE, server_context
from pierhead.server.log import get_logger
from pierhead.server.tls import read_pair, write_secret

PROOF_PROTOCOL: Final = "acme-tls/1"
_PROOF_EXTENSION: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")  # RFC 8737, section 6.1
CHECK_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 60.0
AGAIN_SECONDS_MAX: Final = 6 * 3600.0
WEB_BYTES_MAX: Final = 16 * 1024
log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A public name, and who is asked for its certificate."""

    name: str
    directory: str  # of the ACME server
    kind: Kind
    web_port: int = 80  # where `http-01` is answered


class DomainCertificate:
    """Answers handshakes for one name, once there is a certificate."""

    def __init__(self, folder: Path, domain: Domain, now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._domain = domain
        self._now = now
        self._context: ssl.SSLContext | None = None
        self._proving: ssl.SSLContext | None = None
        if read_pair(self._path) is not None:
            self._context = server_context(self._path)

    @property
    def is_there(self) -> bool:
        """Say whether the name can be vouched for."""
        return self._context is not None

    @property
    def shown(self) -> bytes | None:
        """The certificate, PEM; none: there is none yet."""
        found = read_pair(self._path)
        return None if found is None else found.certificate

    def context_for(self, hello: bytes, own: ssl.SSLContext) -> ssl.SSLContext:
        """Return what answers a handshake; `own` is for all other names, and until there is one."""
        if self._proving is not None and asks_for_proof(hello):
            return self._proving
        return own

    def attach(self, own: ssl.SSLContext) -> None:
        """Let `own` leave handshakes for the name to this certificate."""

        def choose(handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            if name == self._domain.name and self._context is not None:
                handshake.context = self._context

        own.sni_callback = choose

    async def keep(self) -> None:
        """Get the certificate, and get it anew in time, until cancelled."""
        wait = AGAIN_SECONDS
        while True:
            try:
                await self.renew()
            except (AcmeError, OSError) as error:
                self._tell(f"no certificate: {error}")
                log.error("acme.failed", domain=self._domain.name, error=str(error))
                asked = error.retry_after if isinstance(error, AcmeError) else None
                await asyncio.sleep(max(wait, min(asked or 0.0, AGAIN_SECONDS_MAX)))
                wait = min(wait * 2, AGAIN_SECONDS_MAX)
                continue
            wait = AGAIN_SECONDS
            await asyncio.sleep(CHECK_SECONDS)

    async def renew(self) -> bool:
        """Get a certificate if there is none, or the one there is ends soon.

        Raises:
            AcmeError: the server does not give one.
        """
        found = read_pair(self._path)
        if found is not None and not is_due(
            found.certificate, (self._domain.name,), now=self._now()
        ):
            return False
        async with open_acme(self._domain.directory, self._account()) as acme:
            pair = await acme.obtain(self._domain.name, self._domain.kind, self._show)
        write_secret(self._path, pair.pem)
        if self._context is None:
            self._context = server_context(self._path)
        else:
            self._context.load_cert_chain(self._path)
        until = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc
        self._tell(f"certificate until {until:%Y-%m-%d}, renewed by itself")
        log.info("acme.certificate", domain=self._domain.name, until=until.isoformat())
        return True

    @property
    def _path(self) -> Path:
        return self._folder / DOMAIN_FILE

    def _account(self) -> ec.EllipticCurvePrivateKey:
        path = self._folder / "account.pem"
        if not path.exists():
            write_secret(path, key_pem(ec.generate_private_key(ec.SECP256R1())))
        key = load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key

    def _tell(self, text: str) -> None:
        (self._folder / "domain.txt").write_text(text[:1000] + "\n")

    @contextlib.asynccontextmanager
    async def _show(self, proof: Proof) -> AsyncIterator[None]:
        if proof.kind == "http-01":
            async with _on_the_web(proof, self._domain.web_port):
                yield
            return
        path = self._folder / "proof.pem"
        pair = proof_certificate(proof, now=self._now())
        write_secret(path, pair.pem)
        self._proving = server_context(path, PROOF_PROTOCOL)
        path.unlink()
        try:
            yield
        finally:
            self._proving = None


def asks_for_proof(hello: bytes) -> bool:
    """Say whether a handshake offers the protocol of the proof, as only who checks a name does."""
    name = PROOF_PROTOCOL.encode()
    return bytes([len(name)]) + name in hello


def proof_certificate(proof: Proof, *, now: datetime) -> Pair:
    """Return the certificate that proves a name (RFC 8737, section 3)."""
    key = ec.generate_private_key(ec.SECP256R1())
    octets = b"\x04\x20" + proof.digest  # DER: 32 octets
    extension = x509.UnrecognizedExtension(_PROOF_EXTENSION, octets)
    names = x509.SubjectAlternativeName([x509.DNSName(proof.domain)])
    nobody = x509.Name([])
    builder = (
        x509.CertificateBuilder(nobody, nobody)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=True)
        .add_extension(extension, critical=True)
    )
    signed = builder.sign(key, hashes.SHA256())
    return Pair(key_pem(key), signed.public_bytes(Encoding.PEM))


@contextlib.asynccontextmanager
async def _on_the_web(proof: Proof, port: int) -> AsyncIterator[None]:
    """Answer on plain HTTP with the one file that is asked for (RFC 8555, section 8.3)."""
    wanted = f"/.well-known/acme-challenge/{proof.token}"

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
                found = len(words) == 3 and words[0] == "GET" and words[1] == wanted
                body = proof.authorization.encode() if found else b""
                status = b"200 OK" if found else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: application/octet-stream\r\n"
                    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
                )
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve_one, None, port, limit=WEB_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
