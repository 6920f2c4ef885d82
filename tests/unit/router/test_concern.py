"""What the owner is told of certificates: in time, with what to type, and nothing before."""

from datetime import UTC, datetime, timedelta

import pytest

from pierhead.router.domain.authority import Announced, Authority, Machine, Root, Steady, Switched
from pierhead.router.domain.concern import ROOT_TOLD_BEFORE, Concern, Shown, concerns

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
WEEK = timedelta(days=7)
DAY = timedelta(days=1)


def root(pin: str, *, left: timedelta = timedelta(days=3650)) -> Root:
    return Root(pin, NOW + left - timedelta(days=3650), NOW + left)


def told(
    authority: Authority | None, *machines: Machine, shown: tuple[Shown, ...] = ()
) -> list[tuple[str, str, bool]]:
    found = concerns(authority, machines, shown, NOW)
    assert all(isinstance(one, Concern) for one in found)
    return [(one.text, one.remedy, one.needs_you) for one in found]


def knows(name: str, *pins: str, stopped: bool = False) -> Machine:
    return Machine(name=name, pins=pins, stopped=stopped)


def certificate(left: timedelta, life: timedelta = timedelta(days=90)) -> Shown:
    return Shown(name="b.example.com", made_at=NOW + left - life, ends_at=NOW + left, remedy="look")


def test_a_root_with_years_left_concerns_nobody() -> None:
    assert told(Steady(root("a"))) == []
    assert told(Steady(root("a", left=ROOT_TOLD_BEFORE + DAY))) == []
    assert told(None) == []


@pytest.mark.parametrize(
    ("left", "when"),
    [
        (ROOT_TOLD_BEFORE, "ends on 2027-06-02, in 183 days"),
        (DAY, "ends on 2026-12-02, in 1 day"),
        (-DAY, "ended on 2026-11-30"),
    ],
)
def test_a_root_that_ends_soon_needs_another_one(left: timedelta, when: str) -> None:
    text = f"the certificate authority {when}; then nobody believes it"
    assert told(Steady(root("a", left=left))) == [(text, "pierhead ca rotate", True)]


def test_a_change_that_is_announced_is_told_and_needs_nobody() -> None:
    state = Announced(root("a", left=DAY), root("b"), NOW, WEEK)
    text = (
        "the certificate authority is being changed: another one signs from 2026-12-08 12:00 UTC "
        "on, at the latest; not yet known to attic"
    )
    machines = (knows("attic", "a"), knows("desktop", "a", "b"))
    assert told(state, *machines) == [(text, "pierhead ca", False)]


@pytest.mark.parametrize(("stopped", "needs_you"), [(False, True), (True, False)])
def test_who_works_and_knows_only_the_leaving_root_needs_somebody(
    stopped: bool, needs_you: bool
) -> None:
    state = Switched(root("b"), root("a"), NOW, WEEK)
    ((text, remedy, needs),) = told(state, knows("attic", "a", stopped=stopped))
    assert text.endswith(
        "the old one is believed until 2026-12-08 12:00 UTC; not yet known to attic"
    )
    assert (remedy, needs) == ("pierhead ca", needs_you)


def test_a_certificate_is_told_when_it_should_have_been_made_anew() -> None:
    # It is made anew with a third of its life left; what is told is that this went wrong.
    assert told(None, shown=(certificate(timedelta(days=29)),)) == []
    text = "the certificate of b.example.com ends on 2026-12-18, in 17 days, and is not made anew"
    assert told(None, shown=(certificate(timedelta(days=17)),)) == [(text, "look", True)]
    assert told(None, shown=(certificate(timedelta(days=1.5), timedelta(days=6)),)) == []


def test_a_certificate_that_never_came_is_told() -> None:
    nothing = Shown(name="b.example.com", made_at=None, ends_at=None, remedy="look")
    assert told(None, shown=(nothing,)) == [
        ("there is no certificate for b.example.com yet", "look", True)
    ]


def test_what_needs_somebody_comes_first() -> None:
    state = Announced(root("a"), root("b"), NOW, WEEK)
    assert [needs for *_, needs in told(state, shown=(certificate(DAY),))] == [True, False]
