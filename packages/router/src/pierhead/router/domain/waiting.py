"""How long a build waits for a runner, and what happens then.

Waiting is judged by its cause. Nobody is registered, or all that could were stopped by somebody:
there is nothing to wait for. They fell silent: a machine that restarts is back within the grace,
and while one that had the build was believed to be at it, it was waited for already; to build here
needs no more of that, to give up does.
One has just joined: it finds out what it can do before it says a word. They are busy: the submitter
said how long that may take. They broke over it: there is no use in trying that again as long as
this machine can build it. Afterwards the control plane's own machine builds it, if the submitter
allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from pierhead.protocol.plan import IfNobody
from pierhead.router.domain.build import GiveUpCause
from pierhead.router.domain.matching import (
    RunnerFacts,
    Wanted,
    asked_for,
    emulates,
    rejection,
    unfit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPolicy:
    """How long to wait for runners that are offline."""

    offline_grace: timedelta = timedelta(seconds=15)
    # A machine that has joined builds something tiny first, to find out what it can do.
    joining_grace: timedelta = timedelta(seconds=60)
    # This machine's own builder is started again and again; after so long it is not coming.
    here_grace: timedelta = timedelta(seconds=60)
    # While it refuses builds for a reason of its own: a full disk is not emptied by waiting.
    refusal_grace: timedelta = timedelta(seconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """What the submitter said about waiting, and since when the build waits."""

    if_nobody: IfNobody
    busy_for: timedelta
    since: datetime
    idle_since: datetime  # nobody is known to have worked on it since then: `since` or earlier


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on waiting; `until` is none when there is no end to it."""

    why: str
    until: datetime | None
    ends_well: bool = False  # as far as anybody knows: what comes then is not worth a word


@dataclass(frozen=True, slots=True)
class Here:
    """The control plane's own machine may take it. Empty reason: that is the normal place."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoHope:
    """Nobody will build it."""

    cause: GiveUpCause
    detail: str


@dataclass(frozen=True, slots=True)
class _Others:
    """What is to be expected of other machines; `until` none: nothing."""

    until: datetime | None
    cause: GiveUpCause
    why: str
    here_from: datetime | None = None  # this machine need not wait so long


Verdict: TypeAlias = Wait | Here | NoHope


def judge(
    wanted: Wanted,
    patience: Patience,
    runners: Iterable[RunnerFacts],
    *,
    now: datetime,
    policy: WaitingPolicy,
) -> Verdict:
    """Say whether a queued build goes on waiting."""
    everybody = sorted(runners, key=lambda runner: runner.name)
    others = [runner for runner in everybody if not runner.here and asked_for(runner, wanted)]
    able = [runner for runner in others if unfit(runner, wanted) is None]
    # Whoever would emulate leaves the build to one that is native and there.
    native = [runner for runner in able if not emulates(runner, wanted)]
    able = native if any(runner.online for runner in native) else able
    here = next((runner for runner in everybody if runner.here), None)
    if patience.if_nobody == "here" and _is_whole(here, wanted):
        whole = [runner for runner in able if runner.name not in wanted.broken_on]
        if able and not whole:
            names = " and ".join(runner.name for runner in able)
            if wanted.broken_why:
                return Here(f"{names} could not build it: {wanted.broken_why}")
            return Here(f"{names} broke while building it")
        able = whole
    free = next((runner for runner in able if rejection(runner, wanted) is None), None)
    if free is not None:
        # It takes the build with its next request, however short the submitter's patience is.
        return Wait(f"{free.name} is free", None)
    expected = _patience_with(able, others, patience, policy, now)
    until, cause, why = expected.until, expected.cause, expected.why
    unknown = sorted(set(wanted.on) - {runner.name for runner in everybody})
    if unknown and not others:
        why = f"there is no runner {' and no '.join(unknown)}"
    sooner = expected.here_from is not None and now >= expected.here_from
    sooner = sooner and patience.if_nobody == "here" and _can_begin(here, wanted, cause)
    if until is not None and now < until and not sooner:
        endless = patience.if_nobody == "wait"
        return Wait(why, None if endless else until)
    if patience.if_nobody == "wait":
        return Wait(why, None)
    if patience.if_nobody == "fail":
        return NoHope(cause, why)
    reason = why if others or unknown else ""
    if here is not None and not here.online:
        last = max(patience.since, here.seen_at or patience.since)
        if now < last + policy.here_grace:
            until = last + policy.here_grace
            return Wait("the builder on this machine is starting", until, ends_well=True)
        return NoHope(cause, f"{why}, and the builder on this machine does not start")
    verdict = _here(here, wanted, reason, cause)
    if here is not None and here.refuses_since is not None and isinstance(verdict, Here):
        last = max(patience.since, here.refuses_since) + policy.refusal_grace
        said = f"this machine: {here.reason}"
        return Wait(said, last) if now < last else NoHope(cause, f"{why}; {said}")
    return verdict


def _patience_with(
    able: list[RunnerFacts],
    others: list[RunnerFacts],
    patience: Patience,
    policy: WaitingPolicy,
    now: datetime,
) -> _Others:
    """Return until when to wait, and what to say when that is over."""
    if not others:
        return _Others(None, "no-runner", "no runner is registered")
    new = [one for one in others if one.capabilities is None and one.joined_at is not None]
    if new and not any(runner.online for runner in able):
        until = max(one.joined_at for one in new if one.joined_at) + policy.joining_grace
        names = ", ".join(runner.name for runner in new)
        if now < until:
            return _Others(until, "no-runner", f"{names} has just joined, and is not at work yet")
        if not able:
            return _Others(None, "no-runner", f"{names} has joined and was never seen")
    if not able:
        names = ", ".join(runner.name for runner in others)
        return _Others(None, "no-runner", f"no runner can take this build ({names})")
    if not any(runner.online for runner in able):
        silent = [runner for runner in able if not runner.stopped]
        if not silent:
            return _Others(None, "no-runner", _said_of(able))
        last_seen = [runner.seen_at for runner in silent if runner.seen_at]
        until = max([patience.since, *last_seen]) + policy.offline_grace
        here_from = max([patience.idle_since, *last_seen]) + policy.offline_grace
        return _Others(until, "no-runner", _said_of(able), here_from)
    return _Others(patience.since + patience.busy_for, "waited-too-long", _said_of(able))


def _said_of(runners: list[RunnerFacts]) -> str:
    """Return why none of them takes a build now: "desktop and pi are offline; vps is busy"."""
    alike: dict[str, list[str]] = {}
    for runner in runners:
        if runner.online and runner.refuses_since is not None:
            alike[f"{runner.name}: {runner.reason}"] = []
        else:
            alike.setdefault(_state_of(runner), []).append(runner.name)
    return "; ".join(_together(names, state) for state, names in alike.items())


def _state_of(runner: RunnerFacts) -> str:
    if runner.online:
        return "busy"
    return "stopped" if runner.stopped else "offline"


def _together(names: list[str], state: str) -> str:
    if not names:
        return state
    *first, last = names
    return f"{', '.join(first)} and {last} are {state}" if first else f"{last} is {state}"


def somebody_else(wanted: Wanted, if_nobody: IfNobody, runners: Iterable[RunnerFacts]) -> bool:
    """Say whether a build that has just failed can be tried by somebody whom it did not break."""
    everybody = [runner for runner in runners if runner.name not in wanted.broken_on]
    here = next((runner for runner in everybody if runner.here), None)
    if if_nobody == "here" and _is_whole(here, wanted):
        return True
    able = (runner for runner in everybody if not runner.here and unfit(runner, wanted) is None)
    return any(runner.online and runner.refuses_since is None for runner in able)


def _is_whole(here: RunnerFacts | None, wanted: Wanted) -> bool:
    """Say whether this machine would begin with the build, and did not break over it."""
    return (
        here is not None
        and here.name not in wanted.broken_on
        and _can_begin(here, wanted, "no-runner")
    )


def _can_begin(here: RunnerFacts | None, wanted: Wanted, cause: GiveUpCause) -> bool:
    """Say whether the control plane's own machine would begin with the build now."""
    if here is None or not here.online or here.refuses_since is not None:
        return False
    return isinstance(_here(here, wanted, "", cause), Here)


def _here(here: RunnerFacts | None, wanted: Wanted, reason: str, cause: GiveUpCause) -> Verdict:
    if here is None:
        said = reason or "no runner is registered"
        return NoHope(cause, f"{said}, and this machine builds nothing itself")
    unable = unfit(here, wanted)
    if unable is not None:
        return NoHope("no-runner", f"{reason or 'no runner is registered'}; this machine: {unable}")
    return Here(reason)
