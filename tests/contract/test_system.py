"""What every clock and every source of ids keep: the system's, and those that tests move."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from pierhead.protocol.ids import ShortText
from pierhead.router.adapters.clock import SystemClock
from pierhead.router.adapters.entropy import SystemEntropy
from pierhead.router.ports.system import Clock, Entropy
from tests.integration.router.stage import MovableClock
from tests.simulation.chance import Scheduler
from tests.simulation.router import Numbers

READ_ALOUD = set("23456789bcdfghjkmnpqrstvwxz")


@pytest.mark.parametrize("kind", [SystemClock, MovableClock, Scheduler])
def test_the_time_is_of_the_world_and_no_place_in_it(kind: Callable[[], Clock]) -> None:
    clock = kind()

    assert clock.now().utcoffset() == timedelta()
    assert clock.now().tzinfo is UTC
    assert clock.now() + timedelta(hours=1) > clock.now()


def test_the_time_of_a_machine_is_its_own() -> None:
    clock, before = SystemClock(), datetime.now(UTC)

    assert before <= clock.now() <= datetime.now(UTC)


def test_a_clock_that_is_moved_goes_as_far_as_it_was_moved() -> None:
    before, clock = datetime.now(UTC), MovableClock()
    assert before <= (began := clock.now()) <= datetime.now(UTC)

    clock.advance(60)

    assert timedelta() < clock.now() - began - timedelta(seconds=60) < timedelta(milliseconds=1)


@pytest.mark.parametrize("kind", [SystemEntropy, Numbers])
def test_ids_and_secrets_never_come_twice_and_fit_on_the_wire(
    kind: Callable[[], Entropy],
) -> None:
    entropy = kind()
    ids = [entropy.id("b_") for _ in range(2000)]
    secrets = [entropy.secret() for _ in range(2000)]

    assert len({*ids, *secrets}) == 4000
    for one in ids:
        assert one.startswith("b_")
        assert one.removeprefix("b_").isalnum()
        assert msgspec.convert(one, ShortText) == one
    assert all(one.isascii() and one.isprintable() and " " not in one for one in secrets)


def test_ids_can_be_read_aloud_and_secrets_cannot_be_guessed() -> None:
    entropy = SystemEntropy()

    drawn = [entropy.id("") for _ in range(500)]
    assert {letter for one in drawn for letter in one} == READ_ALOUD
    assert {len(one) for one in drawn} == {8}
    assert {len(entropy.secret()) for _ in range(500)} == {43}  # 256 bits in base64
