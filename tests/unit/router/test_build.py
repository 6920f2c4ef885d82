"""Every state of a build meets every command."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from pierhead.protocol.lease import ReleaseReason
from pierhead.protocol.result import Fault
from pierhead.router.domain import build as b
from pierhead.router.domain.errors import BuildFinished, LeaseLost, Refused, TokenSpent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = b.LeasePolicy()
DIGEST = "sha256:" + "a" * 64
WISH = b.CancelWish(by="the owner", reason="")


def lease(fence: int = 1, *, left: timedelta = timedelta(seconds=1)) -> b.Lease:
    expires_at = NOW + left
    return b.Lease(runner="one", session="s_1", request_id="r1", fence=fence, expires_at=expires_at)


SILENT = lease(left=-POLICY.grace)
LEASED = b.Build(id="b_1", state=b.State.LEASED, fence=1, attempts=1, lease=lease())
BUILDS = {
    "queued": b.Build(id="b_1"),
    "leased": LEASED,
    "cancelling": replace(LEASED, cancel=WISH),
    "silent": replace(LEASED, lease=SILENT),
    "silent and cancelling": replace(LEASED, lease=SILENT, cancel=WISH),
    "silent in its last attempt": replace(
        LEASED, fence=3, attempts=3, lease=replace(SILENT, fence=3)
    ),
    "breaks its runners": replace(LEASED, fence=3, broken_on=("r", "r"), lease=lease(3)),
    "succeeded": b.Build(
        id="b_1", state=b.State.SUCCEEDED, fence=1, attempts=1, result=DIGEST, finished_at=NOW
    ),
    "failed": b.Build(id="b_1", state=b.State.FAILED, fence=1, attempts=1, finished_at=NOW),
    "cancelled": b.Build(id="b_1", state=b.State.CANCELLED, finished_at=NOW),
}
COMMANDS: list[b.Command] = [
    b.Grant("two", "s_2", "r2"),
    b.Renew(1, "building"),
    b.Report(1, "succeeded", DIGEST),
    b.Report(1, "failed", DIGEST),
    b.Report(1, "cancelled", DIGEST),
    b.Release(1, "draining"),
    b.Release(1, "unhealthy"),
    b.Lose(1, "restarted"),
    b.Cancel("the owner", ""),
    b.Expire(),
    b.GiveUp("no-runner"),
]


def decide(build: b.Build, command: b.Command, now: datetime = NOW) -> b.Decision:
    return b.decide(build, command, now=now, policy=POLICY)


def test_the_transitions_table_is_exactly_what_decide_does() -> None:
    seen: dict[b.State, set[b.State]] = {state: set() for state in b.State}
    for build, command in product(BUILDS.values(), COMMANDS):
        try:
            after, _ = decide(build, command)
        except Refused:
            continue
        if after.state is not build.state:
            seen[build.state].add(after.state)
    assert seen == b.TRANSITIONS


@pytest.mark.parametrize("name", ["succeeded", "failed", "cancelled"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_final_build_never_changes(name: str, command: b.Command) -> None:
    build = BUILDS[name]
    try:
        after, effects = decide(build, command)
    except Refused:
        return
    assert (after, list(effects)) == (build, [])


@pytest.mark.parametrize(
    "command",
    [b.Renew(1), b.Report(1, "succeeded", DIGEST), b.Release(1, "draining"), b.Lose(1, "gone")],
)
def test_an_attempt_that_was_replaced_is_refused(command: b.Command) -> None:
    replaced = replace(LEASED, fence=2, attempts=2, lease=lease(2))

    with pytest.raises(LeaseLost):
        decide(replaced, command)


def test_the_fence_and_the_attempts_rise_with_each_grant() -> None:
    first, _ = decide(BUILDS["queued"], b.Grant("one", "s_1", "r1"))
    again, _ = decide(first, b.Lose(1, "restarted"))
    second, effects = decide(again, b.Grant("two", "s_2", "r2"))

    assert (second.fence, second.attempts) == (2, 2)
    assert effects == [b.Granted(second.lease)] if second.lease else False


def test_a_release_does_not_count_as_an_attempt() -> None:
    after, _ = decide(LEASED, b.Release(1, "draining"))

    assert (after.state, after.fence, after.attempts) == (b.State.QUEUED, 1, 0)


def test_a_runner_that_takes_and_releases_for_ever_is_stopped() -> None:
    build = BUILDS["queued"]
    for fence in range(1, POLICY.grants_max + 1):
        build, _ = decide(build, b.Grant("one", "s_1", f"r{fence}"))
        build, _ = decide(build, b.Release(fence, "draining"))
    assert build.state is b.State.FAILED


def test_a_build_that_breaks_its_runners_is_given_up_and_one_that_moves_on_is_not() -> None:
    build = BUILDS["queued"]
    effects: Sequence[b.Effect] = ()
    reasons: list[ReleaseReason] = ["unhealthy", "draining", "unhealthy", "draining", "unhealthy"]
    states = []
    for fence, reason in enumerate(reasons, 1):
        build, _ = decide(build, b.Grant("one", "s_1", f"r{fence}"))
        build, effects = decide(build, b.Release(fence, reason))
        states.append(build.state.value)

    assert states == ["queued", "queued", "queued", "queued", "failed"]
    assert list(effects) == [b.Finished(b.State.FAILED, "runner")]


@pytest.mark.parametrize(
    ("fault", "broken", "others", "left"),
    [
        ("build", 0, True, False),
        ("either", 0, True, True),
        ("either", 1, True, False),  # a second machine says the same
        ("either", 0, False, False),
        ("runner", 0, True, True),
        ("runner", POLICY.broken_max - 2, True, True),
        ("runner", POLICY.broken_max - 1, True, False),  # it would be given up without its words
        ("runner", 0, False, False),
    ],
)
def test_a_failure_that_is_its_runners_is_left_to_others_as_long_as_there_are_any(
    fault: Fault, broken: int, others: bool, left: bool
) -> None:
    build = replace(BUILDS["leased"], fence=4, lease=lease(4), broken_on=("r",) * broken)

    assert b.is_left(build, 4, fault, others=others, policy=POLICY) is left
    worn = replace(build, fence=POLICY.grants_max, lease=lease(POLICY.grants_max))
    assert not b.is_left(worn, worn.fence, fault, others=True, policy=POLICY)
    cancelled = replace(build, cancel=b.CancelWish(by="the owner", reason=""))
    assert not b.is_left(cancelled, 4, fault, others=True, policy=POLICY)
    with pytest.raises(LeaseLost):
        b.is_left(build, 3, fault, others=others, policy=POLICY)


def test_what_a_runner_says_of_itself_is_one_line() -> None:
    after, effects = decide(BUILDS["leased"], b.Release(1, "unhealthy", "its disk\nis\tfull"))

    assert (after.broken_on, after.broken_why) == (("one",), "its disk is full")
    assert [effect.reason for effect in effects if isinstance(effect, b.Requeued)] == [
        "its runner gave it back (its disk is full)"
    ]


def test_a_cancelled_build_that_breaks_its_last_runner_is_cancelled() -> None:
    broken = replace(
        BUILDS["cancelling"], broken_on=("r",) * (POLICY.broken_max - 1), fence=3, lease=lease(3)
    )

    after, _ = decide(broken, b.Release(3, "unhealthy"))

    assert after.state is b.State.CANCELLED


def test_a_report_whose_answer_was_lost_gets_the_same_answer_for_fifteen_minutes() -> None:
    build, report = BUILDS["succeeded"], b.Report(1, "succeeded", DIGEST)

    assert decide(build, report, NOW + timedelta(minutes=14)) == (build, [])
    with pytest.raises(TokenSpent):
        decide(build, report, NOW + timedelta(minutes=15))


def test_another_result_after_the_first_is_refused() -> None:
    with pytest.raises(BuildFinished):
        decide(BUILDS["succeeded"], b.Report(1, "succeeded", "sha256:" + "b" * 64))


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_a_result_that_crosses_a_cancel_does_not_undo_it(outcome: str) -> None:
    report = b.Report(1, outcome, DIGEST)  # type: ignore[arg-type]

    after, effects = decide(BUILDS["cancelling"], report)

    assert after.state is b.State.CANCELLED
    assert effects == [b.Finished(b.State.CANCELLED)]


def test_an_attempt_that_is_alive_and_does_not_stop_is_given_up() -> None:
    build, _ = decide(LEASED, b.Cancel("the owner", ""), NOW)
    alive_until = NOW
    while build.state is b.State.LEASED:
        assert alive_until < NOW + POLICY.stop_for + POLICY.ttl + POLICY.grace
        alive_until += POLICY.renew_every
        build, _ = decide(build, b.Renew(1), alive_until)
        build, effects = decide(build, b.Expire(), alive_until)

    assert build.state is b.State.CANCELLED
    assert list(effects) == [b.Finished(b.State.CANCELLED)]
    assert alive_until >= NOW + POLICY.stop_for


def test_a_silent_attempt_is_given_up_only_after_the_grace() -> None:
    expires_at = NOW + timedelta(seconds=1)
    just_before = expires_at + POLICY.grace - timedelta(milliseconds=1)

    assert decide(LEASED, b.Expire(), just_before) == (LEASED, [])
    after, _ = decide(LEASED, b.Expire(), expires_at + POLICY.grace)
    assert after.state is b.State.QUEUED


def test_a_build_of_a_silent_runner_has_waited_since_that_was_last_heard() -> None:
    silent = BUILDS["silent"]
    heard_at = NOW - POLICY.grace - POLICY.ttl

    _, effects = decide(silent, b.Expire())

    assert list(effects) == [
        b.Requeued(1, "one fell silent", heard_at),
        b.Silenced("one", "s_1"),
    ]


@pytest.mark.parametrize("name", ["silent in its last attempt", "silent and cancelling"])
def test_a_runner_is_known_to_be_silent_whatever_becomes_of_the_build(name: str) -> None:
    after, effects = decide(BUILDS[name], b.Expire())

    assert after.state in b.FINAL
    assert effects[-1] == b.Silenced("one", "s_1")


def test_a_build_that_was_given_back_waits_from_then_on_and_says_why() -> None:
    _, effects = decide(LEASED, b.Release(1, "draining", "its disk is full"))

    assert list(effects) == [b.Requeued(1, "its runner gave it back (its disk is full)", NOW)]


def test_a_late_attempt_that_was_not_given_up_may_still_report() -> None:
    after, _ = decide(BUILDS["silent"], b.Report(1, "succeeded", DIGEST))

    assert after.state is b.State.SUCCEEDED


def test_a_silent_runner_is_given_up_within_25_seconds_of_its_last_sign() -> None:
    sweep_every = timedelta(seconds=1)

    assert POLICY.ttl + POLICY.grace + sweep_every <= timedelta(seconds=25)
