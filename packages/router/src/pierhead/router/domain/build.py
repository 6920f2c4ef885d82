"""The life of one build, from the queue to its result.

Every change to a build goes through `decide()`. It takes the build as stored, one command and the
time, and returns the build to store with the effects that follow. It never waits, reads a clock or
draws a random number, so the simulator can run it millions of times.

A build is held by at most one attempt. The fence proves the hold: it rises with every grant, and
what comes with an older one is refused, however late it arrives. The clock is not part of that
argument. It decides only when a silent attempt is given up, so a wrong clock costs time and never
a second result.

Not here: which runner gets the build (`matching`), where it goes when nobody can take it
(`waiting`), and what is pushed (`rights`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias, assert_never

from pierhead.protocol.lease import Phase, ReleaseReason
from pierhead.protocol.result import Fault, Outcome
from pierhead.router.domain.errors import BuildFinished, LeaseLost, NotQueued, TokenSpent


class State(StrEnum):
    """Where a build stands. The last three are final."""

    QUEUED = "queued"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.LEASED, State.FAILED, State.CANCELLED}),
    State.LEASED: frozenset({State.QUEUED, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}

LostCause: TypeAlias = Literal["runners-lost", "runner"]
GiveUpCause: TypeAlias = Literal["no-runner", "waited-too-long"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """How long a runner may be silent, and how often a build is tried."""

    ttl: timedelta = timedelta(seconds=20)
    renew_every: timedelta = timedelta(seconds=6)
    # A runner freezes its build 3 s before its lease ends; this much later it surely stands still.
    # With a sweep each second the build waits again at most 25 s after the last sign of life.
    grace: timedelta = timedelta(seconds=4)
    attempts_max: int = 3
    # A build that runners give back because it breaks them would break all of them, one by one.
    broken_max: int = 3
    # Releases do not count as attempts; this bounds a runner that takes and releases for ever.
    grants_max: int = 20
    receipt_for: timedelta = timedelta(minutes=15)
    # So long a runner has to stop what is cancelled and to show it, however alive it is.
    stop_for: timedelta = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One attempt's exclusive hold on a build."""

    runner: str
    session: str
    request_id: str  # of the acquire that was granted: its repeat gets the same grant
    fence: int
    expires_at: datetime
    ends_at: datetime | None = None  # no renewal reaches further: it was asked to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelWish:
    """Who wanted the build to end, and why."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build as stored."""

    id: str
    state: State = State.QUEUED
    fence: int = 0  # the highest ever granted
    attempts: int = 0  # grants that count
    broken_on: tuple[str, ...] = ()  # of each grant given back because it broke: the runner
    broken_why: str = ""  # of the last one, in its runner's words
    lease: Lease | None = None
    phase: Phase | None = None
    cancel: CancelWish | None = None
    result: str | None = None  # digest of the accepted envelope
    finished_at: datetime | None = None

    def __post_init__(self) -> None:
        assert (self.state is State.LEASED) == (self.lease is not None), self
        assert self.lease is None or self.lease.fence == self.fence, self
        assert (self.state in FINAL) == (self.finished_at is not None), self
        assert 0 <= self.attempts <= self.fence, self
        assert len(self.broken_on) <= self.fence, self


# Commands: what somebody asks for.


@dataclass(frozen=True, slots=True)
class Grant:
    """Give the build to a runner's session."""

    runner: str
    session: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Renew:
    """The attempt is alive."""

    fence: int
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The attempt ended, and how. `result` is the digest of the envelope."""

    fence: int
    outcome: Outcome
    result: str


@dataclass(frozen=True, slots=True)
class Release:
    """The runner gives the build back, alive. `detail`: why, in its own words."""

    fence: int
    reason: ReleaseReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lose:
    """The runner's process that held this attempt is known to be gone."""

    fence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The build is no longer wanted."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expire:
    """Time passed: take the build back if its attempt fell silent."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody can, or will, build it."""

    cause: GiveUpCause


Command: TypeAlias = Grant | Renew | Report | Release | Lose | Cancel | Expire | GiveUp


# Effects: what follows once the new build is stored.


@dataclass(frozen=True, slots=True)
class Granted:
    """Hand the lease to the runner."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """Tell the submitter what the runner does now."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Tell the runner to stop."""

    wish: CancelWish


@dataclass(frozen=True, slots=True)
class Requeued:
    """Wake a runner that waits, and tell the submitter why it starts anew."""

    fence: int  # of the attempt that ended
    reason: str
    since: datetime  # nobody has worked on the build since then


@dataclass(frozen=True, slots=True)
class Silenced:
    """Give the runner nothing until it speaks again."""

    runner: str
    session: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Tell the submitter. `cause` says why when no runner did."""

    state: State
    cause: LostCause | GiveUpCause | None = None


Effect: TypeAlias = Granted | PhaseEntered | CancelAsked | Requeued | Silenced | Finished
Decision: TypeAlias = tuple[Build, Sequence[Effect]]


def decide(build: Build, command: Command, *, now: datetime, policy: LeasePolicy) -> Decision:
    """Apply one command.

    Raises:
        Refused: the build's state does not allow it. The build is unchanged.
    """
    match command:
        case Grant():
            return _grant(build, command, now, policy)
        case Renew(fence, phase):
            lease = _renewed(require_held(build, fence), now + policy.ttl)
            entered = phase is not None and phase != build.phase
            renewed = replace(build, lease=lease, phase=phase or build.phase)
            return renewed, [PhaseEntered(phase)] if phase is not None and entered else []
        case Report():
            return _report(build, command, now, policy)
        case Release(fence, reason, detail):
            lease, said = require_held(build, fence), one_line(detail)
            # Giving back in good order is not an attempt that failed.
            uncounted = replace(build, attempts=build.attempts - 1)
            if reason == "unhealthy":
                broken_on = (*build.broken_on, lease.runner)
                uncounted = replace(uncounted, broken_on=broken_on, broken_why=said)
            why = f"its runner gave it back ({said or reason})"
            return _requeue(uncounted, why, now, policy)
        case Lose(fence, reason):
            require_held(build, fence)
            return _requeue(build, reason, now, policy)
        case Cancel(by, reason):
            return _cancel(build, CancelWish(by=by, reason=reason), now, policy)
        case Expire():
            if build.lease is None or build.lease.expires_at > given_up(now, policy):
                return build, []
            return _expire(build, build.lease, now, policy)
        case GiveUp(cause):
            if build.state is not State.QUEUED:
                raise NotQueued(f"{build.id} is {build.state}, not waiting")
            return _finish(build, State.FAILED, now, cause=cause)
        case _:
            assert_never(command)


def _grant(build: Build, grant: Grant, now: datetime, policy: LeasePolicy) -> Decision:
    if build.state is not State.QUEUED:
        raise NotQueued(f"{build.id} is {build.state}, not waiting")
    lease = Lease(
        runner=grant.runner,
        session=grant.session,
        request_id=grant.request_id,
        fence=build.fence + 1,
        expires_at=now + policy.ttl,
    )
    granted = replace(
        build,
        state=State.LEASED,
        fence=lease.fence,
        attempts=build.attempts + 1,
        lease=lease,
        phase=None,
    )
    return granted, [Granted(lease)]


def _report(build: Build, report: Report, now: datetime, policy: LeasePolicy) -> Decision:
    if build.state in FINAL and report.fence == build.fence and report.result == build.result:
        assert build.finished_at is not None
        if now < build.finished_at + policy.receipt_for:
            return build, []  # the answer to the first report was lost: say yes again
        raise TokenSpent(f"{build.id} had this result more than {policy.receipt_for} ago")
    require_held(build, report.fence)
    # Whoever cancelled was told that no image comes of it: a result that crossed the wish on its
    # way here does not change that.
    state = State.CANCELLED if build.cancel is not None else State(report.outcome)
    return _finish(build, state, now, result=report.result)


def _cancel(build: Build, wish: CancelWish, now: datetime, policy: LeasePolicy) -> Decision:
    if build.state is State.CANCELLED or build.cancel is not None:
        return build, []
    if build.state in FINAL:
        raise already_over(build.id, build.state)
    wished = replace(build, cancel=wish)
    if build.lease is None:
        return _finish(wished, State.CANCELLED, now)
    # The attempt learns of it by its signals, its log, or its next heartbeat, and proves the stop.
    # One that goes on, and says that it is alive, is given up all the same.
    lease = replace(build.lease, ends_at=now + policy.stop_for)
    return replace(wished, lease=lease), [CancelAsked(wish)]


def given_up(now: datetime, policy: LeasePolicy) -> datetime:
    """Return the latest end of a lease that nobody waits for any more."""
    return now - policy.grace


def _expire(build: Build, lease: Lease, now: datetime, policy: LeasePolicy) -> Decision:
    """End an attempt that fell silent: the build has waited since its last sign of life."""
    heard_at = lease.expires_at - policy.ttl
    after, effects = _requeue(build, f"{lease.runner} fell silent", now, policy, since=heard_at)
    if lease.expires_at == lease.ends_at:
        return after, effects  # it may be alive, and did not stop when it was asked to
    return after, [*effects, Silenced(lease.runner, lease.session)]


def is_left(build: Build, fence: int, fault: Fault, *, others: bool, policy: LeasePolicy) -> bool:
    """Say whether the failure of an attempt is no result, as somebody else should try.

    `others`: somebody else is there for it. When nobody can tell whose fault it is, a second
    failure is the build's.

    Raises:
        Refused: the attempt does not hold the build.
    """
    require_held(build, fence)
    tries = {"build": 0, "either": 1, "runner": policy.broken_max - 1}[fault]
    wanted = build.cancel is None and build.fence < policy.grants_max
    return wanted and others and len(build.broken_on) < tries


def _requeue(
    build: Build,
    reason: str,
    now: datetime,
    policy: LeasePolicy,
    *,
    since: datetime | None = None,
) -> Decision:
    """End the attempt: back to the queue, or to the end if nobody wants or can try again."""
    if build.cancel is not None:
        return _finish(build, State.CANCELLED, now)
    if len(build.broken_on) >= policy.broken_max:
        return _finish(build, State.FAILED, now, cause="runner")
    if build.attempts >= policy.attempts_max or build.fence >= policy.grants_max:
        return _finish(build, State.FAILED, now, cause="runners-lost")
    waiting = replace(build, state=State.QUEUED, lease=None, phase=None)
    return waiting, [Requeued(build.fence, reason, since or now)]


def already_over(build_id: str, state: State) -> BuildFinished:
    """Return why a build cannot be cancelled any more."""
    hint = f"nothing is left to cancel; how it ended: pierhead builds show {build_id}"
    return BuildFinished(f"{build_id} has {state} already", hint=hint, state=state.value)


def one_line(text: str) -> str:
    """Return a runner's words as they can stand among others: in a log, say."""
    return " ".join(text.split())


def _renewed(lease: Lease, until: datetime) -> Lease:
    return replace(lease, expires_at=min(until, lease.ends_at or until))


def require_held(build: Build, fence: int) -> Lease:
    """Return the lease that the fence proves.

    An attempt that is late but was not yet given up still holds: nobody else does.
    """
    if build.state in FINAL:
        raise BuildFinished(f"{build.id} has {build.state} already", state=build.state.value)
    if build.lease is None or build.lease.fence != fence:
        raise LeaseLost(f"attempt {fence} of {build.id} is over")
    return build.lease


def _finish(
    build: Build,
    state: State,
    now: datetime,
    *,
    result: str | None = None,
    cause: LostCause | GiveUpCause | None = None,
) -> Decision:
    final = replace(build, state=state, lease=None, result=result, finished_at=now)
    return final, [Finished(state, cause)]
