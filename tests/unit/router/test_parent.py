"""Every state of a build for several platforms meets every command."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from pierhead.router.domain import parent as p
from pierhead.router.domain.build import FINAL, Cancel, CancelWish, Finished, State
from pierhead.router.domain.errors import BuildFinished, Refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WISH = CancelWish(by="the owner", reason="asked for")
PLATFORMS = ("linux/amd64", "linux/arm64", "linux/riscv64")


def children(*states: str) -> tuple[p.Child, ...]:
    numbered = enumerate(zip(PLATFORMS, states, strict=False), 1)
    return tuple(p.Child(id=f"b_1-{n}", platform=one, state=State(s)) for n, (one, s) in numbered)


def parent(state: str, *states: str, **more: object) -> p.Parent:
    final = {"finished_at": NOW} if state in FINAL else {}
    known = {"id": "b_1", "state": State(state), "children": children(*states), **final, **more}
    return p.Parent(**known)  # type: ignore[arg-type]


PARENTS = {
    "queued": parent("queued", "queued", "queued"),
    "failed before it began": parent("queued", "failed", "queued", culprit="b_1-1"),
    "cancelled before it began": parent("queued", "cancelled", "queued", cancel=WISH),
    "begun": parent("leased", "leased", "queued"),
    "waits again": parent("leased", "queued", "queued"),
    "all at work": parent("leased", "leased", "leased"),
    "half done": parent("leased", "succeeded", "leased"),
    "one failed": parent("leased", "failed", "leased", culprit="b_1-1"),
    "cancelling": parent("leased", "leased", "leased", cancel=WISH),
    "half cancelled": parent("leased", "cancelled", "leased", cancel=WISH),
    "succeeded": parent("succeeded", "succeeded", "succeeded"),
    "failed": parent("failed", "failed", "cancelled", culprit="b_1-1"),
    "cancelled": parent("cancelled", "cancelled", "cancelled", cancel=WISH),
}
# A child that ended by itself because somebody wanted it to, and every other news of one.
HEARD = [
    p.Heard(f"b_1-{number}", state, WISH if state is State.CANCELLED else None)
    for number, state in product((1, 2), State)
]
COMMANDS: list[p.Command] = [*HEARD, Cancel("the owner", "asked for")]


def decide(before: p.Parent, command: p.Command) -> p.Decision:
    return p.decide(before, command, now=NOW)


def asked_to_end(effects: object) -> list[str]:
    assert isinstance(effects, list)
    return [effect.child for effect in effects if isinstance(effect, p.EndChild)]


def test_the_transitions_table_is_exactly_what_decide_does() -> None:
    seen: dict[State, set[State]] = {state: set() for state in State}
    for before, command in product(PARENTS.values(), COMMANDS):
        try:
            after, _ = decide(before, command)
        except Refused:
            continue
        if after.state is not before.state:
            seen[before.state].add(after.state)
    assert seen == p.TRANSITIONS


@pytest.mark.parametrize(("end", "wish"), [("failed", None), ("cancelled", WISH)])
def test_a_parent_of_which_nothing_ever_ran_ends_like_its_children(
    end: str, wish: CancelWish | None
) -> None:
    first, effects = decide(PARENTS["queued"], p.Heard("b_1-1", State(end), wish))
    assert (first.state, asked_to_end(effects)) == (State.QUEUED, ["b_1-2"])

    last, effects = decide(first, p.Heard("b_1-2", State.CANCELLED, WISH))

    assert last.state is State(end)
    assert effects == [Finished(State(end))]


@pytest.mark.parametrize("name", ["succeeded", "failed", "cancelled"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_final_parent_never_changes(name: str, command: p.Command) -> None:
    before = PARENTS[name]
    try:
        after, effects = decide(before, command)
    except BuildFinished:
        return
    assert (after, list(effects)) == (before, [])


@pytest.mark.parametrize("name", PARENTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_news_that_were_heard_change_nothing_when_they_come_again(
    name: str, command: p.Command
) -> None:
    try:
        once, _ = decide(PARENTS[name], command)
        twice, effects = decide(once, command)
    except BuildFinished:
        return
    assert (twice, list(effects)) == (once, [])


def test_it_has_begun_when_its_first_child_has_and_stays_so() -> None:
    begun, effects = decide(PARENTS["queued"], p.Heard("b_1-2", State.LEASED))
    again, _ = decide(begun, p.Heard("b_1-2", State.QUEUED))

    assert (begun.state, again.state, list(effects)) == (State.LEASED, State.LEASED, [])


def test_it_has_succeeded_only_with_the_last_of_its_children() -> None:
    half, effects = decide(PARENTS["all at work"], p.Heard("b_1-1", State.SUCCEEDED))
    assert (half.state, list(effects)) == (State.LEASED, [])

    whole, effects = decide(half, p.Heard("b_1-2", State.SUCCEEDED))

    assert (whole.state, effects) == (State.SUCCEEDED, [Finished(State.SUCCEEDED)])
    assert whole.finished_at == NOW


def test_the_first_failure_ends_the_others_with_a_reason_and_waits_for_them() -> None:
    three = parent("leased", "leased", "leased", "succeeded")

    after, effects = decide(three, p.Heard("b_1-2", State.FAILED))

    reason = "it failed: an image is for all of its platforms, or for none"
    blamed = CancelWish(by="the build for linux/arm64", reason=reason)
    assert effects == [p.EndChild("b_1-1", blamed)]
    assert (after.state, after.culprit, after.finished_at) == (State.LEASED, "b_1-2", None)
    ended, effects = decide(after, p.Heard("b_1-1", State.CANCELLED, blamed))
    assert (ended.state, ended.culprit) == (State.FAILED, "b_1-2")
    assert effects == [Finished(State.FAILED)]


def test_a_second_failure_is_not_the_first() -> None:
    after, effects = decide(PARENTS["one failed"], p.Heard("b_1-2", State.FAILED))

    assert (after.state, after.culprit) == (State.FAILED, "b_1-1")
    assert effects == [Finished(State.FAILED)]


def test_whoever_cancels_one_platform_cancels_all_of_them() -> None:
    after, effects = decide(PARENTS["all at work"], p.Heard("b_1-1", State.CANCELLED, WISH))

    assert (after.cancel, asked_to_end(effects)) == (WISH, ["b_1-2"])
    ended, _ = decide(after, p.Heard("b_1-2", State.CANCELLED, WISH))
    assert ended.state is State.CANCELLED


def test_a_cancel_reaches_the_children_that_have_not_ended() -> None:
    after, effects = decide(PARENTS["half done"], Cancel("the owner", "asked for"))

    assert (after.state, after.cancel) == (State.LEASED, WISH)
    assert effects == [p.EndChild("b_1-2", WISH)]


def test_whoever_cancels_after_a_failure_is_told_the_truth_as_with_one_platform() -> None:
    wished, _ = decide(PARENTS["one failed"], Cancel("the owner", "asked for"))
    ended, _ = decide(wished, p.Heard("b_1-2", State.CANCELLED, WISH))

    assert ended.state is State.CANCELLED


def test_a_child_that_failed_while_it_was_being_cancelled_is_not_blamed() -> None:
    after, effects = decide(PARENTS["cancelling"], p.Heard("b_1-1", State.FAILED))

    assert (after.culprit, list(effects)) == (None, [])


def test_a_parent_that_contradicts_its_children_cannot_be() -> None:
    half = PARENTS["half done"]

    with pytest.raises(AssertionError):
        replace(half, state=State.SUCCEEDED, finished_at=NOW)
    with pytest.raises(AssertionError):
        replace(half, children=half.children[:1])
    with pytest.raises(AssertionError):
        replace(PARENTS["failed"], finished_at=NOW + timedelta(), state=State.LEASED)
