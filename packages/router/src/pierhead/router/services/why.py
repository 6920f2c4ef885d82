"""Why a build waits or fails: who does not take it, who does, and what happens next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pierhead.protocol.build import PlatformWhy, Why, WhyRequest
from pierhead.protocol.ids import BuildId
from pierhead.protocol.units import size
from pierhead.router.domain import waiting as waits
from pierhead.router.domain.build import State
from pierhead.router.domain.matching import RunnerFacts, Wanted, explain, unfit
from pierhead.router.domain.parent import Parent
from pierhead.router.domain.token import Principal, require_view
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.facts import all_facts, patience_of, wanted_of
from pierhead.router.services.outlook import Outlooks, waits_for
from pierhead.router.services.submit import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """What can be asked about builds that nobody builds yet."""

    store: Store
    clock: Clock
    waiting: waits.WaitingPolicy
    outlooks: Outlooks

    async def why(self, principal: Principal, build_id: str) -> Why:
        """Say which runners do not take a build and what happens next."""
        now = self.clock.now()

        def operation(ledger: Ledger) -> Why:
            stored, facts = visible(ledger, principal, build_id), all_facts(ledger, now)
            if not isinstance(stored.build, Parent):
                return self._of_build(ledger, stored, facts, now)
            return _together(
                [
                    _of_platform(one.platform, self._of_build(ledger, child, facts, now), child.id)
                    for one in stored.build.children
                    if (child := ledger.build(one.id)) is not None
                ]
            )

        return await self.store.read(operation)

    def _of_build(
        self, ledger: Ledger, stored: StoredBuild, facts: Sequence[RunnerFacts], now: datetime
    ) -> Why:
        wanted, state = wanted_of(stored), stored.build.state
        rejections, eligible = explain(facts, wanted)
        verdict = f"{state} on {stored.last_runner}" if stored.last_runner else f"{state}"
        if state is State.QUEUED:
            verdict = self._then(wanted, patience_of(stored), facts, now)
        looks = self.outlooks.of(ledger, stored, now)
        return Why(
            wants=_wants(wanted),
            rejections=rejections,
            eligible=eligible,
            verdict=verdict,
            position=looks.place,
            expected_wait_seconds=looks.wait_seconds,
            may_run_here=state is State.QUEUED and _may_run_here(wanted, facts),
        )

    async def why_not(self, principal: Principal, request: WhyRequest) -> Why:
        """Say which runners would not take such a build and what would happen."""
        require_view(principal, request.project)
        now = self.clock.now()

        def operation(ledger: Ledger) -> Why:
            facts = all_facts(ledger, now)
            if len(request.platforms) < 2:
                one = next(iter(request.platforms), request.platform)
                return self._of_wish(ledger, request, one, facts, now)
            return _together(
                [
                    _of_platform(one, self._of_wish(ledger, request, one, facts, now))
                    for one in dict.fromkeys(request.platforms)
                ]
            )

        return await self.store.read(operation)

    def _of_wish(
        self,
        ledger: Ledger,
        request: WhyRequest,
        platform: str | None,
        facts: Sequence[RunnerFacts],
        now: datetime,
    ) -> Why:
        project = ledger.project(request.project)
        wanted = Wanted(
            build_id="",
            sequence=0,
            platform=platform,
            network=request.network,
            trusted=project is None or project.trusted,
            peak_bytes=ledger.last_peak(request.project),
        )
        busy_for = timedelta(seconds=request.max_queue_wait_seconds)
        patience = waits.Patience(
            if_nobody=request.if_nobody, busy_for=busy_for, since=now, idle_since=now
        )
        judged = waits.judge(wanted, patience, facts, now=now, policy=self.waiting)
        at_once_here = isinstance(judged, waits.Here)
        rejections, eligible = explain(facts, replace(wanted, here_allowed=at_once_here))
        verdict = self._then(wanted, patience, facts, now)
        return Why(wants=_wants(wanted), rejections=rejections, eligible=eligible, verdict=verdict)

    def _then(
        self,
        wanted: Wanted,
        patience: waits.Patience,
        facts: Sequence[RunnerFacts],
        now: datetime,
    ) -> str:
        """Return the verdict in words, and what follows when the waiting is over."""
        judged = waits.judge(wanted, patience, facts, now=now, policy=self.waiting)
        said = _sentence(judged, facts)
        if not isinstance(judged, waits.Wait) or judged.until is None or judged.ends_well:
            return said
        later = waits.judge(wanted, patience, facts, now=judged.until, policy=self.waiting)
        if isinstance(later, waits.Here):
            return f"{said}, then it is built here"
        return f"{said}, then it fails" if isinstance(later, waits.NoHope) else said


def _of_platform(platform: str, why: Why, build_id: str | None = None) -> PlatformWhy:
    return PlatformWhy(
        platform=platform,
        build=BuildId(build_id) if build_id else None,
        wants=why.wants,
        rejections=why.rejections,
        eligible=why.eligible,
        verdict=why.verdict,
        position=why.position,
        expected_wait_seconds=why.expected_wait_seconds,
        may_run_here=why.may_run_here,
    )


def _together(parts: Sequence[PlatformWhy]) -> Why:
    return Why(
        wants=" and ".join(part.platform for part in parts),
        rejections=(),
        eligible=tuple(sorted({name for part in parts for name in part.eligible})),
        verdict="; ".join(f"{part.platform} {part.verdict}" for part in parts),
        platforms=tuple(parts),
    )


def _may_run_here(wanted: Wanted, facts: Sequence[RunnerFacts]) -> bool:
    allowed = replace(wanted, here_allowed=True)
    here = (runner for runner in facts if runner.here and runner.online)
    return not wanted.here_allowed and any(unfit(runner, allowed) is None for runner in here)


def _wants(wanted: Wanted) -> str:
    memory = f", {size(wanted.peak_bytes)} memory (its last build)" if wanted.peak_bytes else ""
    secrets = ", its secrets" if wanted.secrets else ""
    preview = ", a preview" if wanted.preview else ""
    network = "no network" if wanted.network == "none" else "a network"
    return f"{wanted.platform or 'any platform'}{memory}, {network}{secrets}{preview}"


def _sentence(judged: waits.Verdict, facts: Sequence[RunnerFacts]) -> str:
    match judged:
        case waits.Wait(why, until, ends_well):
            end = f" (until {until:%H:%M:%S} UTC)" if until and not ends_well else ""
            return f"waits: {why}{end}"
        case waits.Here(reason):
            busy = waits_for(judged, facts)
            at_once = "is built on this machine" + (f": {reason}" if reason else "")
            return f"waits: {busy}" if busy else at_once
        case waits.NoHope(_, detail):
            return f"fails: {detail}"
