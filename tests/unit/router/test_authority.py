"""When another certificate authority is announced, signs, and is the only one: as rules alone."""

from datetime import UTC, datetime, timedelta

import pytest

from pierhead.protocol.authority import AFTER_SECONDS, AFTER_SECONDS_MIN
from pierhead.router.domain.authority import (
    ANNOUNCED_AT_LEAST,
    Announced,
    Authority,
    Machine,
    Root,
    Steady,
    Switched,
    advance,
    awaited,
    begin,
    believed,
    cancel,
    check_confirmed,
    is_due,
    newest,
    unknowing,
)
from pierhead.router.domain.enrollment import LIFETIME
from pierhead.router.domain.errors import (
    NotAllowed,
    Refused,
    RotationConflict,
    StaleFingerprint,
)
from pierhead.router.domain.token import (
    Attempt,
    Owner,
    Principal,
    ProjectHolder,
    Puller,
    Runner,
    require_rotation,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
END = NOW + timedelta(days=3650)
OLD, NEW, NEXT = (Root(digit * 64, NOW, END) for digit in "abc")
STEADY = Steady(OLD)
AFTER = timedelta(seconds=AFTER_SECONDS)
ANNOUNCED = Announced(OLD, NEW, NOW, AFTER)
SWITCHED = Switched(NEW, OLD, NOW, AFTER)
MOMENT = timedelta(microseconds=1)


def begun(state: Authority) -> Authority:
    return begin(state, NEXT, AFTER, NOW)


def advanced(state: Authority) -> Authority:
    return advance(state, NOW)


@pytest.mark.parametrize(
    ("command", "state", "result"),
    [
        (begun, STEADY, Announced(OLD, NEXT, NOW, AFTER)),
        (begun, ANNOUNCED, RotationConflict),
        (begun, SWITCHED, RotationConflict),
        (cancel, STEADY, RotationConflict),
        (cancel, ANNOUNCED, STEADY),
        (cancel, SWITCHED, RotationConflict),
        (advanced, STEADY, RotationConflict),
        (advanced, ANNOUNCED, SWITCHED),
        (advanced, SWITCHED, Steady(NEW)),
    ],
)
def test_each_command_in_each_state(command: object, state: Authority, result: object) -> None:
    assert callable(command)
    if isinstance(result, type) and issubclass(result, Refused):
        with pytest.raises(result) as refused:
            command(state)
        assert "pierhead ca" in refused.value.hint
    else:
        assert command(state) == result


@pytest.mark.parametrize(
    ("state", "pins", "in_codes"),
    [
        (STEADY, {OLD.pin}, OLD),
        (ANNOUNCED, {OLD.pin, NEW.pin}, NEW),
        (SWITCHED, {OLD.pin, NEW.pin}, NEW),
    ],
)
def test_who_is_believed_and_who_is_in_codes(
    state: Authority, pins: set[str], in_codes: Root
) -> None:
    assert {root.pin for root in believed(state)} == pins
    assert believed(state)[0] == state.root
    assert newest(state) == in_codes


def test_a_code_of_one_phase_names_somebody_who_is_believed_in_the_next() -> None:
    """As long as each phase is longer than a code is good, no code ends before its time."""
    for before, after in ((STEADY, ANNOUNCED), (ANNOUNCED, SWITCHED), (SWITCHED, Steady(NEW))):
        assert newest(before) in believed(after)
    assert newest(STEADY) in believed(SWITCHED)


KNOWS = Machine(name="knows", pins=(OLD.pin, NEW.pin), stopped=False)
LACKS = Machine(name="lacks", pins=(OLD.pin,), stopped=False)
STOPPED = Machine(name="stopped", pins=(OLD.pin,), stopped=True)
SILENT = Machine(name="silent", pins=None, stopped=False)  # of an older release, or not there yet
NEEDS_NONE = Machine(name="needs-none", pins=(), stopped=False)  # the system vouches for the name


@pytest.mark.parametrize(
    ("machines", "lacking", "waited_for"),
    [
        ((), (), ()),
        ((KNOWS, NEEDS_NONE), (), ()),
        ((KNOWS, LACKS), ("lacks",), ("lacks",)),
        ((SILENT,), ("silent",), ("silent",)),
        ((STOPPED, KNOWS), ("stopped",), ()),
    ],
)
def test_who_does_not_know_the_new_one(
    machines: tuple[Machine, ...], lacking: tuple[str, ...], waited_for: tuple[str, ...]
) -> None:
    assert unknowing(ANNOUNCED, machines) == lacking
    assert awaited(ANNOUNCED, machines) == waited_for


@pytest.mark.parametrize(
    ("state", "machines", "at", "due"),
    [
        (STEADY, (KNOWS,), END, False),
        # All know it: as soon as codes that were made before have ended.
        (ANNOUNCED, (KNOWS,), ANNOUNCED_AT_LEAST - MOMENT, False),
        (ANNOUNCED, (KNOWS,), ANNOUNCED_AT_LEAST, True),
        (ANNOUNCED, (KNOWS, STOPPED), ANNOUNCED_AT_LEAST, True),
        # One does not: for as long as was said.
        (ANNOUNCED, (KNOWS, LACKS), AFTER - MOMENT, False),
        (ANNOUNCED, (KNOWS, LACKS), AFTER, True),
        (ANNOUNCED, (SILENT,), AFTER - MOMENT, False),
        # Then the old one is believed for as long, whoever knows the new one.
        (SWITCHED, (KNOWS,), AFTER - MOMENT, False),
        (SWITCHED, (LACKS,), AFTER, True),
    ],
)
def test_when_it_goes_on_by_itself(
    state: Authority, machines: tuple[Machine, ...], at: timedelta | datetime, due: bool
) -> None:
    now = at if isinstance(at, datetime) else NOW + at
    assert is_due(state, machines, now) is due


@pytest.mark.parametrize("state", [STEADY, ANNOUNCED])
def test_only_who_names_the_one_that_signs_replaces_it(state: Authority) -> None:
    check_confirmed(state, OLD.pin)
    for wrong in (NEW.pin, "", OLD.pin[:16], OLD.pin.upper()):
        with pytest.raises(StaleFingerprint):
            check_confirmed(state, wrong)


@pytest.mark.parametrize(
    ("principal", "is_here", "may"),
    [
        (Owner(), True, True),
        (Owner("ci"), False, False),
        (ProjectHolder("web"), True, False),
        (Runner("desktop", here=True), True, False),
        (Attempt("b_1", 1, "web"), True, False),
        (Puller("web"), True, False),
    ],
)
def test_only_the_owner_on_the_machine_itself_changes_it(
    principal: Principal, is_here: bool, may: bool
) -> None:
    if may:
        assert require_rotation(principal, is_here=is_here) == principal
    else:
        with pytest.raises(NotAllowed):
            require_rotation(principal, is_here=is_here)


def test_no_phase_is_shorter_than_a_join_code_is_good() -> None:
    assert timedelta(seconds=AFTER_SECONDS_MIN) == LIFETIME
