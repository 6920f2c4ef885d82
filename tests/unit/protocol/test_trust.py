"""By whom a control plane is believed, and what is learned of others: without a connection."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from pierhead.protocol.client.failure import estranged, is_of_another_authority
from pierhead.protocol.client.trust import (
    AUTHORITIES_MAX,
    Trust,
    certificates,
    fingerprint,
    fingerprints,
    trust_in,
)
from pierhead.protocol.errors import Invalid, Unavailable
from pierhead.server.authority import new_authority

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW, OTHER = (
    new_authority(f"pierhead {name}", now=NOW).certificate.decode()
    for name in ("old", "new", "other")
)
ALONE, BOTH = fingerprint(OLD), f"{fingerprint(OLD)},{fingerprint(NEW)}"


class Kept(list[str]):
    """What was stored."""


def learner(ca: str = OLD) -> tuple[Trust, Kept]:
    kept = Kept()
    return Trust(ca, kept.append), kept


def test_of_a_text_each_certificate_is_found() -> None:
    text = f"# a note\n{OLD}\n{NEW}"
    assert certificates(text) == (OLD, NEW)
    assert fingerprints(text) == (fingerprint(OLD), fingerprint(NEW))
    with pytest.raises(ValueError, match="no certificate"):
        fingerprints("a note")


def test_another_one_is_stored_and_believed_by_connections_that_are_there() -> None:
    trust, kept = learner()
    before = trust.context
    assert trust.lacks(BOTH)
    trust.learn(OLD + NEW, BOTH)
    assert kept == [OLD + NEW]
    assert trust.pins == (fingerprint(OLD), fingerprint(NEW))
    assert trust.context is before
    assert len(before.get_ca_certs()) == 2
    assert not trust.lacks(",".join(reversed(BOTH.split(","))))


def test_one_that_left_is_not_believed_by_the_next_connection() -> None:
    trust, kept = learner(OLD + NEW)
    before = trust.context
    trust.learn(NEW, fingerprint(NEW))
    assert kept == [NEW]
    assert trust.context is not before
    assert len(trust.context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (OLD + NEW, ALONE),  # an answer that was overtaken
        (OLD, BOTH),
        (OLD + OTHER, BOTH),
        ("", BOTH),
        (OLD + NEW, f"{BOTH},x"),
        (OLD, ",".join([ALONE] * (AUTHORITIES_MAX + 1))),
    ],
)
def test_what_was_named_and_what_was_shown_are_the_same_or_nothing_is_learned(
    shown: str, said: str
) -> None:
    trust, kept = learner()
    with pytest.raises(ValueError, match="not the ones that were named"):
        trust.learn(shown, said)
    assert (kept, trust.ca) == ([], OLD)


def test_what_cannot_be_stored_is_not_believed() -> None:
    def full(_: str) -> None:
        raise OSError("no space left on device")

    trust = Trust(OLD, full)
    with pytest.raises(OSError, match="no space"):
        trust.learn(OLD + NEW, BOTH)
    assert trust.pins == (ALONE,)
    assert len(trust.context.get_ca_certs()) == 1


def test_whoever_is_not_known_by_an_authority_of_its_own_teaches_none() -> None:
    kept = Kept()
    assert not Trust(None, kept.append).lacks(BOTH)
    assert not Trust(OLD).lacks(BOTH)
    assert not learner()[0].lacks("")


def test_a_file_that_somebody_named_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, kept = tmp_path / "ca.crt", Kept()
    monkeypatch.setenv("PIERHEAD_CA", str(file))
    with pytest.raises(Invalid):
        trust_in(OLD, kept.append, again="")
    file.write_text(NEW + OTHER)
    trust = trust_in(OLD, kept.append, again="")
    assert trust.pins == (fingerprint(NEW), fingerprint(OTHER))
    assert not trust.lacks(BOTH)
    assert str(file) in trust.again


@pytest.mark.parametrize(
    ("code", "another"), [(20, True), (19, True), (25, True), (10, False), (62, False)]
)
def test_an_authority_that_signed_nothing_is_told_from_other_reasons(
    code: int, another: bool
) -> None:
    distrust = ssl.SSLCertVerificationError()
    distrust.verify_code = code
    error = httpx.ConnectError("handshake failed")
    error.__cause__ = distrust
    assert is_of_another_authority(error) is another


def test_nobody_says_that_it_was_changed_who_cannot_know() -> None:
    error = estranged("https://203.0.113.7:7443", ALONE, "join again")
    assert isinstance(error, Unavailable)
    assert "Either it was changed while this machine was away, or somebody else" in str(error)
    assert ALONE[:16] in str(error)
    assert (error.problem.hint or "").endswith("join again")
