"""The router hides secrets that a runner did not: at their offsets, over all cuts, in all words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.digest import digest_of
from pierhead.protocol.redact import Patterns
from pierhead.protocol.result import Envelope, Failure
from pierhead.router.services.intake import Intake, without_secrets

VALUE = b"canary-of-a-secret"


def kept(values: list[bytes], *parts: bytes) -> bytes:
    """Return what is stored of a log, and check that its digest is of what came."""
    intake, stored = Intake(Patterns(values)), bytearray()
    for part in parts:
        hidden, shown = intake.look(part)
        assert len(shown) == len(part)
        stored[len(stored) - hidden :] = b"*" * hidden + shown
        intake.accept(part)
    assert intake.received.digest() == digest_of(b"".join(parts))
    return bytes(stored)


def test_a_secret_becomes_as_many_stars() -> None:
    assert kept([VALUE], b"a " + VALUE + b" b") == b"a " + b"*" * len(VALUE) + b" b"


@pytest.mark.parametrize("cut", range(1, len(VALUE)))
def test_a_secret_that_comes_in_two_parts_is_hidden_in_both(cut: int) -> None:
    log = b"before " + VALUE + b" after"
    parts = (log[: 7 + cut], log[7 + cut :])

    assert kept([VALUE], *parts) == b"before " + b"*" * len(VALUE) + b" after"


def test_a_secret_that_comes_byte_by_byte_is_hidden() -> None:
    parts = [VALUE[at : at + 1] for at in range(len(VALUE))]

    assert kept([VALUE], *parts) == b"*" * len(VALUE)


@given(
    values=st.lists(st.binary(min_size=8, max_size=20), min_size=1, max_size=3),
    noise=st.binary(max_size=40),
    data=st.data(),
)
def test_what_is_stored_does_not_depend_on_the_cuts(
    values: list[bytes], noise: bytes, data: st.DataObject
) -> None:
    log = noise.join(values) + noise
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    parts = [log[a:b] for a, b in zip([0, *cuts], [*cuts, len(log)], strict=True)]

    stored = kept(values, *parts)

    assert stored == kept(values, log)
    assert not [value for value in values if len(value.strip()) >= 8 and value in stored]


def test_the_words_of_a_failure_have_no_secret_and_its_cause_stays() -> None:
    said = VALUE.decode()
    failure = Failure(
        cause="command", message=f"{said}!", step=said, extract=("x", said), hint=said, exit_code=1
    )
    envelope = Envelope(outcome="failed", failure=failure, warnings=(said,))

    shown = without_secrets(envelope, Patterns([VALUE, b"command"]))

    assert said not in str(shown)
    assert shown.failure is not None
    assert (shown.failure.cause, shown.failure.message) == ("command", "***!")


def test_without_secrets_a_result_is_left_alone() -> None:
    envelope = Envelope(outcome="succeeded")

    assert without_secrets(envelope, Patterns(())) is envelope
