"""What keeps an authority, asked of the one with keys and files and of the one without."""

import abc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pierhead.protocol.authority import AFTER_SECONDS
from pierhead.router.adapters.handshakes import Handshakes
from pierhead.router.config import Settings
from pierhead.router.domain.authority import (
    Announced,
    Authority,
    Steady,
    Switched,
    advance,
    begin,
    cancel,
)
from pierhead.router.domain.reach import reach
from pierhead.router.ports.roots import Roots
from tests.simulation.roots import MemoryRoots

AFTER = timedelta(seconds=AFTER_SECONDS)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def now(self) -> datetime:
        return NOW


class Place(abc.ABC):
    """Where an authority is kept, and how it is looked at from outside."""

    roots: Roots

    @abc.abstractmethod
    def kept(self) -> Authority:
        """Return what is there after a restart."""

    @abc.abstractmethod
    def keys(self) -> int:
        """Return how many keys of roots are there."""


class InMemory(Place):
    def __init__(self) -> None:
        self.roots: MemoryRoots = MemoryRoots(NOW)

    def kept(self) -> Authority:
        return self.roots.state

    def keys(self) -> int:
        return len(self.roots.keys)


class OnDisk(Place):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.roots = self._opened()

    def _opened(self) -> Handshakes:
        settings = Settings(data=self._folder, config=self._folder)
        reached = reach(host="0.0.0.0", port=7443, usual_address="127.0.0.1")
        return Handshakes(settings, reached, Clock())

    def kept(self) -> Authority:
        return self._opened().state

    def keys(self) -> int:
        return (self._folder / "tls/authority.pem").read_bytes().count(b"BEGIN PRIVATE KEY")


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return InMemory() if request.param == "memory" else OnDisk(tmp_path)


def test_there_is_a_root_from_the_first_start_on(place: Place) -> None:
    state = place.roots.state
    assert isinstance(state, Steady)
    assert len(state.root.pin) == 64
    assert state.root.made_at <= NOW < NOW + timedelta(days=3000) < state.root.ends_at
    assert place.kept() == state
    assert place.keys() == 1


def test_a_root_that_was_made_counts_for_nothing(place: Place) -> None:
    before = place.roots.state
    made = place.roots.make()
    assert made.pin != before.root.pin
    assert place.roots.make().pin != made.pin
    assert place.roots.state == place.kept() == before
    assert place.keys() == 1


def test_each_state_is_kept_as_it_was_entered_and_keys_as_long_as_they_sign(place: Place) -> None:
    roots = place.roots
    old, coming = roots.state.root, roots.make()
    announced = begin(roots.state, coming, AFTER, NOW)
    roots.enter(announced)
    assert roots.state == place.kept() == Announced(old, coming, NOW, AFTER)
    assert place.keys() == 2

    later = NOW + timedelta(minutes=15)
    roots.enter(advance(roots.state, later))
    assert roots.state == place.kept() == Switched(coming, old, later, AFTER)
    assert place.keys() == 1

    roots.enter(advance(roots.state, later))
    assert roots.state == place.kept() == Steady(coming)
    assert place.keys() == 1


def test_what_was_announced_is_gone_when_it_is_taken_back(place: Place) -> None:
    before = place.roots.state
    place.roots.enter(begin(before, place.roots.make(), AFTER, NOW))
    place.roots.enter(cancel(place.roots.state))
    assert place.roots.state == place.kept() == before
    assert place.keys() == 1


@pytest.mark.parametrize("phase", ["steady", "announced", "switched"])
def test_nothing_is_left_of_what_was_before_when_another_begins_anew(
    place: Place, phase: str
) -> None:
    roots = place.roots
    if phase != "steady":
        roots.enter(begin(roots.state, roots.make(), AFTER, NOW))
    if phase == "switched":
        roots.enter(advance(roots.state, NOW))
    new = roots.make()
    roots.begin_anew(Steady(new))
    assert roots.state == place.kept() == Steady(new)
    assert place.keys() == 1
