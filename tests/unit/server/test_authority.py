"""Certificates are read with OpenSSL's own eyes: what counts is what a client accepts."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from pierhead.protocol.client import trust
from pierhead.server.authority import Pair, fingerprint, fits, is_due, issue, new_authority

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMES = ("203.0.113.7", "build.example.com", "fd00::2", "localhost")


@pytest.fixture(scope="module")
def authority() -> Pair:
    return new_authority("pierhead 203.0.113.7", now=NOW)


def loaded(pair: Pair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.certificate)


def chain(authority: Pair, server: Pair, name: str, now: datetime) -> int:
    """Return how many certificates there are from the server to the authority."""
    subject: x509.GeneralName
    try:
        subject = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        subject = x509.DNSName(name)
    builder = PolicyBuilder().store(Store([loaded(authority)])).time(now)
    return len(builder.build_server_verifier(subject).verify(loaded(server), []))


@pytest.mark.parametrize("name", NAMES)
def test_a_server_is_trusted_by_each_of_its_names(authority: Pair, name: str) -> None:
    assert chain(authority, issue(authority, NAMES, now=NOW), name, NOW) == 2


def test_a_server_is_not_trusted_by_another_name(authority: Pair) -> None:
    with pytest.raises(VerificationError):
        chain(authority, issue(authority, NAMES, now=NOW), "203.0.113.8", NOW)


def test_a_server_is_not_trusted_through_another_authority(authority: Pair) -> None:
    other = new_authority("pierhead 203.0.113.7", now=NOW)
    server = issue(authority, NAMES, now=NOW)
    assert fits(server.certificate, authority.certificate)
    assert not fits(server.certificate, other.certificate)
    with pytest.raises(VerificationError):
        chain(other, server, "203.0.113.7", NOW)


@pytest.mark.parametrize("days", [-1, 91])
def test_a_server_is_trusted_for_ninety_days(authority: Pair, days: int) -> None:
    server = issue(authority, NAMES, now=NOW)
    with pytest.raises(VerificationError):
        chain(authority, server, "203.0.113.7", NOW + timedelta(days=days))


def test_the_authority_lives_ten_years_and_vouches_for_one_other(authority: Pair) -> None:
    found = loaded(authority)
    basic = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert basic.value.ca
    assert basic.value.path_length == 1
    assert found.not_valid_after_utc - NOW == timedelta(days=3650)
    assert isinstance(found.public_key(), ec.EllipticCurvePublicKey)


def test_a_server_can_only_be_a_server(authority: Pair) -> None:
    found = loaded(issue(authority, NAMES, now=NOW)).extensions
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_long_host_name_still_gets_a_certificate(authority: Pair) -> None:
    long = ".".join(["x" * 60] * 4)
    assert chain(authority, issue(authority, [long], now=NOW), long, NOW) == 2


@pytest.mark.parametrize(
    ("days", "names", "due"),
    [
        (0, NAMES, False),
        (59, NAMES, False),
        (60, NAMES, True),
        (200, NAMES, True),
        (0, NAMES[:2], False),
        (0, (*NAMES, "203.0.113.9"), True),
    ],
)
def test_a_certificate_is_made_anew_in_time_or_for_a_new_name(
    authority: Pair, days: int, names: tuple[str, ...], due: bool
) -> None:
    server = issue(authority, NAMES, now=NOW)
    assert is_due(server.certificate, names, now=NOW + timedelta(days=days)) is due


def test_both_sides_know_the_authority_by_the_same_pin(authority: Pair) -> None:
    text = authority.certificate.decode()
    assert trust.fingerprint(text) == fingerprint(authority.certificate)
    assert trust.fingerprint(ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(text))) == (
        fingerprint(authority.certificate)
    )
