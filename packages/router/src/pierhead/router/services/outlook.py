"""How it looks for builds that wait: their place, when they may begin, what they wait for.

Only who asks has the queue looked at, and a submit never does. It is played ahead for everybody at
once, and the longer it is, the longer that is good, however many look on or come.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from pierhead.router.domain import forecast as ahead
from pierhead.router.domain import turns
from pierhead.router.domain import waiting as waits
from pierhead.router.domain.build import State
from pierhead.router.domain.matching import RunnerFacts
from pierhead.router.domain.parent import Parent
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger
from pierhead.router.services.facts import all_facts, patience_of, wanted_of

# So long an answer is good, and longer by this for each build that waits: a thirtieth of that is
# what it took to foresee one.
AGAIN: Final = timedelta(seconds=1)
AGAIN_EACH: Final = timedelta(milliseconds=5)
# Each project is a question of its own to the database; the rest take what builds take on average.
PROJECTS_LOOKED_AT: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How it looks for one build. Nothing is known of one that does not wait."""

    place: int | None = None  # in the queue, from 1
    wait_seconds: int | None = None  # until it is likely to begin
    waits_for: str | None = None  # "desktop is busy"


class Outlooks:
    """Looks ahead for builds that wait."""

    def __init__(self, policy: waits.WaitingPolicy) -> None:
        self._policy = policy
        self._played_at: datetime | None = None
        self._begins: Mapping[str, timedelta | None] = {}

    def of(self, ledger: Ledger, stored: StoredBuild, now: datetime) -> Outlook:
        """Return how it looks for a build."""
        return self.of_all(ledger, (stored,), now).get(stored.id, Outlook())

    def of_all(
        self, ledger: Ledger, builds: Iterable[StoredBuild], now: datetime
    ) -> Mapping[str, Outlook]:
        """Return how it looks for those of the builds that wait.

        One for several platforms begins with the first of its children.
        """
        waiting = [stored for stored in builds if stored.build.state is State.QUEUED]
        if not waiting:
            return {}
        facts, places = all_facts(ledger, now), turns.places(ledger.line())
        return {stored.id: self._look(ledger, stored, facts, places, now) for stored in waiting}

    def _look(
        self,
        ledger: Ledger,
        stored: StoredBuild,
        facts: Sequence[RunnerFacts],
        places: Mapping[int, int],
        now: datetime,
    ) -> Outlook:
        if isinstance(stored.build, Parent):
            children = [ledger.build(child.id) for child in stored.build.children]
            each = [self._look(ledger, child, facts, places, now) for child in children if child]
            known = [one.wait_seconds for one in each if one.wait_seconds is not None]
            return Outlook(wait_seconds=min(known, default=None))
        begins = self._begin(ledger, stored.id, facts, now)
        judged = waits.judge(
            wanted_of(stored), patience_of(stored), facts, now=now, policy=self._policy
        )
        return Outlook(
            place=places.get(stored.sequence),
            wait_seconds=ceil(begins.total_seconds()) if begins is not None else None,
            waits_for=waits_for(judged, facts),
        )

    def _begin(
        self, ledger: Ledger, build_id: str, facts: Sequence[RunnerFacts], now: datetime
    ) -> timedelta | None:
        """Return when a build begins, as of no more than a moment ago.

        One that came since is a reason to look again, if the last time was cheap.
        """
        pause = AGAIN_EACH * (len(self._begins) + 1)
        good_for = pause if build_id not in self._begins else pause + AGAIN
        if self._played_at is None or not timedelta() <= now - self._played_at < good_for:
            self._begins, self._played_at = _played(ledger, facts, now), now
        return self._begins.get(build_id)


def waits_for(judged: waits.Verdict, facts: Sequence[RunnerFacts]) -> str | None:
    """Return in words what a build waits for that was judged so; none: for nothing any more."""
    match judged:
        case waits.Wait(why):
            return why
        case waits.Here(reason):
            busy = any(runner.here and runner.free_slots < 1 for runner in facts)
            said = "this machine is busy" if busy else None
            return f"{said}, and {reason}" if said and reason else said
        case waits.NoHope():
            return None


def _played(
    ledger: Ledger, facts: Sequence[RunnerFacts], now: datetime
) -> Mapping[str, timedelta | None]:
    places, leased = turns.places(ledger.line()), ledger.leased()
    queue = sorted(ledger.queued(), key=lambda stored: places[stored.sequence])
    usual = _usual_of(ledger, (*leased, *queue))
    queued = (
        ahead.Queued(wanted=wanted_of(stored), usual=usual[stored.submit.project])
        for stored in queue
    )
    running = (
        ahead.Running(
            runner=stored.build.lease.runner,
            since=stored.granted_at or now,
            usual=usual[stored.submit.project],
            stopping=stored.build.cancel is not None,
        )
        for stored in leased
        if stored.build.lease is not None
    )
    return ahead.forecast(queued, facts, running, now=now)


def _usual_of(ledger: Ledger, builds: Iterable[StoredBuild]) -> Mapping[str, timedelta | None]:
    """Return how long builds of each project take; of one that has built nothing, as others do."""
    projects = list(dict.fromkeys(stored.submit.project for stored in builds))
    of_any = ahead.usual(ledger.durations(None)) if projects else None
    known = {
        project: ahead.usual(ledger.durations(project)) for project in projects[:PROJECTS_LOOKED_AT]
    }
    return {project: known.get(project) or of_any for project in projects}
