"""Which runner may take which build, and why not.

Pure over a snapshot: the same rows in any order give the same answer. Builds of a project are
served in the order in which they came, a build that waits again keeps its place, and whose turn it
is among projects, `turns` says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from pierhead.protocol.build import Rejection
from pierhead.protocol.runner import Capabilities
from pierhead.protocol.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """One runner at one moment."""

    name: str
    here: bool = False
    online: bool = True
    stopped: bool = False  # it said that it ends
    joined_at: datetime | None = None
    seen_at: datetime | None = None
    capabilities: Capabilities | None = None  # none: it never opened a session
    free_slots: int = 0
    reason: str | None = None  # why it takes nothing now, in its own words
    refuses_since: datetime | None = None  # not for being busy: it might take nothing for long
    opens_secrets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a queued build needs. `sequence` rises in the order of submission."""

    build_id: str
    sequence: int
    platform: str | None = None
    network: str = "default"
    trusted: bool = True
    on: tuple[str, ...] = ()  # the runners that were asked for; none: any
    secrets: bool = False  # it has some
    preview: bool = False
    peak_bytes: int | None = None  # memory that the project's last build took
    broken_on: frozenset[str] = frozenset()  # the runners that broke while they built it
    broken_why: str = ""  # what the last of them said
    here_allowed: bool = False  # `waiting` decided that the control plane's machine may take it


def asked_for(runner: RunnerFacts, wanted: Wanted) -> bool:
    """Say whether the submitter would have the runner at all."""
    return not wanted.on or runner.name in wanted.on


def unfit(runner: RunnerFacts, wanted: Wanted) -> str | None:
    """Say why the runner could never take the build, whatever its load; none: it could."""
    able = runner.capabilities
    if not asked_for(runner, wanted):
        return f"left out by --on {','.join(wanted.on)}"
    if able is None:
        return "has not connected yet"
    if able.slots == 0 and not runner.here:  # here may be mended, or started again: `waiting`
        return able.limits.get("backend", "builds nothing")
    native = wanted.platform is None or wanted.platform in able.platforms
    if not native and not emulates(runner, wanted):
        return f"{', '.join(able.platforms)} only; the build wants {wanted.platform}"
    if wanted.network not in able.networks:
        return f"gives builds no network of the kind {wanted.network!r}"
    if not wanted.trusted and able.isolation != "full":
        return "does not isolate builds, and the project is not trusted"
    if wanted.secrets and able.isolation != "full":
        return "does not isolate builds, so their secrets would not be safe there"
    if wanted.secrets and not runner.opens_secrets:
        return "is too old for builds with secrets: upgrade it"
    return _kept_from_here(runner, wanted, able)


def emulates(runner: RunnerFacts, wanted: Wanted) -> bool:
    """Say whether the runner would build for a platform that is not its own, as it may."""
    able = runner.capabilities
    if able is None or wanted.platform is None or wanted.platform in able.platforms:
        return False
    return wanted.platform in able.emulated


def _kept_from_here(runner: RunnerFacts, wanted: Wanted, able: Capabilities) -> str | None:
    """Say what spares the control plane's own machine, unless somebody asked for it by name."""
    if not runner.here or wanted.here_allowed or runner.name in wanted.on:
        return None
    if wanted.preview:
        return "builds no previews"
    if wanted.peak_bytes is not None and wanted.peak_bytes > able.memory_bytes:
        allowed = size(able.memory_bytes)
        return f"would need {size(wanted.peak_bytes)}, {allowed} are allowed here"
    return None


def rejection(runner: RunnerFacts, wanted: Wanted) -> str | None:
    """Say why the runner does not take the build now; none: it would."""
    reason = unfit(runner, wanted)
    if reason is not None:
        return reason
    if not runner.online:
        since = f" since {runner.seen_at:%H:%M} UTC" if runner.seen_at else ""
        return f"{'stopped' if runner.stopped else 'offline'}{since}"
    if runner.here and not wanted.here_allowed:
        return "kept for builds that nobody else can take"
    if runner.free_slots < 1:
        return runner.reason or "busy"
    return None


def choose_builds(
    runner: RunnerFacts, queue: Iterable[Wanted], others: Sequence[RunnerFacts] = ()
) -> tuple[str, ...]:
    """Return the builds that the runner gets, oldest first, at most `free_slots`.

    Here leaves a build to any of `others` that is free for it. Whoever would emulate leaves it to
    one that is native, busy or not: that one is done sooner. Whoever broke while it had the build
    leaves it to one that did not.
    """
    fitting = (
        wanted
        for wanted in sorted(queue, key=lambda wanted: wanted.sequence)
        if rejection(runner, wanted) is None and not _leaves(runner, wanted, others)
    )
    return tuple(wanted.build_id for wanted in islice(fitting, runner.free_slots))


def _leaves(runner: RunnerFacts, wanted: Wanted, others: Sequence[RunnerFacts]) -> bool:
    # Nobody leaves a build to one that broke over it, or two would leave it to each other.
    whole = [other for other in others if other.name not in wanted.broken_on]
    there = [other for other in whole if unfit(other, wanted) is None and other.online]
    if runner.name in wanted.broken_on:
        there = [other for other in there if other.refuses_since is None]
        return any(not other.here or wanted.here_allowed for other in there)
    if emulates(runner, wanted):
        return any(not other.here and not emulates(other, wanted) for other in there)
    return runner.here and any(rejection(other, wanted) is None for other in whole)


def explain(
    runners: Iterable[RunnerFacts], wanted: Wanted
) -> tuple[tuple[Rejection, ...], tuple[str, ...]]:
    """Return why each runner does not take the build, and the names of those that would."""
    reasons = [(r.name, rejection(r, wanted)) for r in sorted(runners, key=lambda r: r.name)]
    rejections = tuple(Rejection(runner=name, reason=why) for name, why in reasons if why)
    return rejections, tuple(name for name, why in reasons if not why)
