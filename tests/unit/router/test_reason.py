"""A build that failed says why, and its runner says only what it can know."""

import pytest

from pierhead.protocol.result import Cause, Envelope, Failure
from pierhead.router.domain.errors import ResultMismatch
from pierhead.router.domain.reason import with_reason


def test_a_reason_stays_as_it_was_given() -> None:
    given = Envelope(outcome="failed", failure=Failure(cause="command", message="exit code 2"))

    assert with_reason(given) == given


def test_a_runner_that_gives_no_reason_is_the_reason() -> None:
    told = with_reason(Envelope(outcome="failed"))

    assert told.failure is not None
    assert (told.failure.cause, told.failure.message) == ("runner", "its runner gave no reason")


@pytest.mark.parametrize("cause", ["no-runner", "runners-lost", "waited-too-long"])
def test_a_runner_cannot_know_what_happened_without_it(cause: Cause) -> None:
    lie = Envelope(outcome="failed", failure=Failure(cause=cause, message="nobody"))

    with pytest.raises(ResultMismatch, match=f"{cause}, which no runner can know"):
        with_reason(lie)
