"""When a build that waits is likely to begin: the queue played ahead.

A runner takes the first build in turn that it can take as soon as a place is free there. So the
queue is played in the order of `turns`: each build gets the place that is free first among those
that it could get, and keeps it for as long as builds of its project usually take. Whatever comes
behind in the queue makes nothing later, and no estimate is below nothing.

An estimate is none where nothing is known: no build ever succeeded, nobody who is there takes the
build, or what is before it goes on far longer than its like. Why nobody takes it, `waiting` says;
it also says what happens when the waiting is over, of which nothing is foreseen here. Nor are
builds that fail early, or come in before they are needed.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pierhead.router.domain.matching import RunnerFacts, Wanted, emulates, unfit

# Enough that one odd build says little, and so few that a project that changes is followed.
DURATIONS_MAX: Final = 9
# What lasts longer than usual is taken to last a quarter of its time more: the longer something
# has outlasted what was expected of it, the less is that worth. So an estimate comes to rest
# instead of running out, one fifth before the usual end.
MORE_OF_IT: Final = 0.25
# What has lasted so many times as long as usual is not like the usual ones: nothing is known of it.
UNLIKE_THEM: Final = 3
LEAST_SECONDS: Final = 1.0
# What was asked to stop is gone in seconds, however long it would have gone on.
STOPPING_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A build that a runner has. `usual`: how long its like take; none: not known."""

    runner: str
    since: datetime
    usual: timedelta | None
    stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A build in the queue."""

    wanted: Wanted
    usual: timedelta | None


def usual(durations: Sequence[timedelta]) -> timedelta | None:
    """Return how long builds usually take: the median, of two in the middle the longer."""
    return sorted(durations)[len(durations) // 2] if durations else None


def forecast(
    queue: Iterable[Queued],
    runners: Sequence[RunnerFacts],
    running: Iterable[Running],
    *,
    now: datetime,
) -> Mapping[str, timedelta | None]:
    """Return in how long each build of the queue is likely to begin, by its id; none: not known.

    `queue` is in the order in which it is served.
    """
    there = {runner.name: runner for runner in runners if _takes(runner)}
    places = _places(there.values(), running, now)
    able_for: dict[Wanted, Sequence[RunnerFacts]] = {}
    begins: dict[str, timedelta | None] = {}
    for build in queue:
        # Most builds want the same as others, and each runner is asked once for all of them.
        like = replace(build.wanted, build_id="", sequence=0)
        able = able_for.get(like)
        if able is None:
            able = able_for[like] = _able(like, there.values())
        begins[build.wanted.build_id] = _begin(build, able, places)
    return begins


def _begin(
    build: Queued, able: Sequence[RunnerFacts], places: Mapping[str, list[float]]
) -> timedelta | None:
    """Take the place that is free first, for as long as the build lasts; return when it is free."""
    if not able:
        return None
    # This machine comes last, also when it is free as soon as others.
    first = min(able, key=lambda runner: (places[runner.name][0], runner.here, runner.name))
    lasts = build.usual.total_seconds() if build.usual is not None else math.inf
    at = places[first.name][0]
    heapq.heapreplace(places[first.name], at + lasts)
    return timedelta(seconds=at) if at < math.inf else None


def _takes(runner: RunnerFacts) -> bool:
    """Say whether a runner takes builds, now or when it is through with some."""
    slots = runner.capabilities.slots if runner.capabilities else 0
    return runner.online and runner.refuses_since is None and slots > 0


def _able(wanted: Wanted, there: Iterable[RunnerFacts]) -> Sequence[RunnerFacts]:
    """Return who would take a build; whoever would emulate leaves it to those who need not."""
    able = [
        runner
        for runner in there
        if unfit(runner, wanted) is None and (wanted.here_allowed or not runner.here)
    ]
    return [runner for runner in able if not emulates(runner, wanted)] or able


def _places(
    there: Iterable[RunnerFacts], running: Iterable[Running], now: datetime
) -> Mapping[str, list[float]]:
    """Return in how many seconds each place of each runner is free, as heaps."""
    left: dict[str, list[float]] = {}
    for build in running:
        left.setdefault(build.runner, []).append(_left(build, now))
    places = {}
    for runner in there:
        slots = runner.capabilities.slots if runner.capabilities else 0
        busy = sorted(left.get(runner.name, ()))
        # One that has more than it may begin now begins the next when the surplus is gone, too.
        places[runner.name] = [0.0] * (slots - len(busy)) + busy[max(0, len(busy) - slots) :]
    return places


def _left(build: Running, now: datetime) -> float:
    """Return how many seconds a build is likely to go on."""
    if build.stopping:
        return STOPPING_SECONDS
    if build.usual is None:
        return math.inf
    lasted = max(0.0, (now - build.since).total_seconds())
    usually = build.usual.total_seconds()
    if lasted > UNLIKE_THEM * max(usually, LEAST_SECONDS):
        return math.inf
    return max(usually - lasted, lasted * MORE_OF_IT, LEAST_SECONDS)
