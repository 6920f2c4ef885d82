"""A certificate authority for one control plane, and what it signs. No clock, no files.

The authority lives ten years, its certificates ninety days: they are made anew while the control
plane runs, long before they end, since nobody but the control plane has to know of it. The
authority may sign servers, and vouch for one other authority, which may sign servers only: the one
that follows it, or that it follows.
"""

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFETIME: Final = timedelta(days=3650)
LIFETIME: Final = timedelta(days=90)
# Clocks of other machines may be behind ours.
BACKDATED: Final = timedelta(hours=1)
COMMON_NAME_MAX: Final = 64  # RFC 5280, ub-common-name


@dataclass(frozen=True, slots=True)
class Pair:
    """A private key and its certificate, both PEM."""

    key: bytes
    certificate: bytes

    @property
    def pem(self) -> bytes:
        """Both in one piece, so that they can only be replaced together."""
        return self.key + self.certificate


def new_authority(name: str, *, now: datetime) -> Pair:
    """Make an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # No two have one name: who vouches for whom is looked up by names.
    mark = f" {serial:040x}"[:9]
    subject = _name(name[: COMMON_NAME_MAX - len(mark)] + mark)
    builder = (
        x509.CertificateBuilder(subject, subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Pair(key_pem(key), builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def issue(
    authority: Pair, names: Sequence[str], *, now: datetime, key: bytes | None = None
) -> Pair:
    """Make a certificate for a server that is reached by `names`: host names and IP addresses.

    `key` (PEM) is the one that the server has had so far; none: it gets a new one.
    """
    own_key = _loaded(key) if key else ec.generate_private_key(ec.SECP256R1())
    issuer_key = _loaded(authority.key)
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder(_subject(authority), _name(names[0]))
        .public_key(own_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general, names))), critical=False)
        .add_extension(known, critical=False)
    )
    signed = builder.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return Pair(key_pem(own_key), signed)


def vouch(issuer: Pair, other: bytes, *, now: datetime, until: datetime) -> bytes:
    """Return a certificate (PEM) by which whoever believes `issuer` believes another authority.

    `other` is that one's own certificate, PEM. Sent along in a handshake, it makes the certificates
    of one good for those who know the other only.
    """
    issuer_key = _loaded(issuer.key)
    known = x509.load_pem_x509_certificate(other)
    key = known.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder(_subject(issuer), known.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer_id, critical=False)
    )
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)


def lifetime(certificate: bytes) -> tuple[datetime, datetime]:
    """Return from when until when a certificate (PEM) is good."""
    found = x509.load_pem_x509_certificate(certificate)
    return found.not_valid_before_utc, found.not_valid_after_utc


def _subject(authority: Pair) -> x509.Name:
    return x509.load_pem_x509_certificate(authority.certificate).subject


def _loaded(key: bytes) -> ec.EllipticCurvePrivateKey:
    found = load_pem_private_key(key, None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    return found


def is_due(certificate: bytes, names: Sequence[str], *, now: datetime) -> bool:
    """Say whether a certificate (PEM) has to be made anew: it ends soon, or lacks a name."""
    found = x509.load_pem_x509_certificate(certificate)
    lifetime = found.not_valid_after_utc - found.not_valid_before_utc
    # A third of its life is left for whatever keeps a renewal from working.
    ends_soon = now >= found.not_valid_after_utc - lifetime / 3
    return ends_soon or not set(names) <= _names(found)


def fits(certificate: bytes, authority: bytes) -> bool:
    """Say whether an authority signed a certificate (both PEM)."""
    try:
        issuer = x509.load_pem_x509_certificate(authority)
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(issuer)
    except Exception:  # whatever is wrong with it, it is no certificate of ours
        return False
    return True


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (PEM), as 64 hexadecimal digits: the pin."""
    der = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    return hashlib.sha256(der).hexdigest()


def key_pin(certificate: bytes) -> str:
    """Return the pin of a certificate's key as `curl --pinnedpubkey` takes it."""
    key = x509.load_pem_x509_certificate(certificate).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "sha256//" + base64.b64encode(hashlib.sha256(der).digest()).decode()


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted: the file's mode protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:COMMON_NAME_MAX])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = map(str, found.get_values_for_type(x509.IPAddress))
    return {*found.get_values_for_type(x509.DNSName), *addresses}


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
