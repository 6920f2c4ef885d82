"""From what is stored to what the rules look at."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pierhead.protocol.plan import Submit
from pierhead.router.domain.matching import RunnerFacts, Wanted
from pierhead.router.domain.session import is_alive
from pierhead.router.domain.waiting import Patience
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.machines import StoredRunner
from pierhead.router.ports.store import Ledger

# A runner says something at least each 25 s (its acquire) and each 6 s while it builds.
OFFLINE_AFTER = timedelta(seconds=35)


def wanted_by(request: Submit, build_id: str) -> Wanted:
    """Return what a build needs, as far as its submitter says."""
    plan = request.plan
    return Wanted(
        build_id=build_id,
        sequence=0,
        platform=plan.platform,
        network=plan.network,
        secrets=bool(plan.secrets),
        on=request.on,
    )


def wanted_of(stored: StoredBuild) -> Wanted:
    """Return what a queued build needs."""
    return replace(
        wanted_by(stored.submit, stored.id),
        sequence=stored.sequence,
        trusted=stored.trusted,
        preview=stored.preview,
        peak_bytes=stored.peak_bytes,
        broken_on=frozenset(stored.build.broken_on),
        broken_why=stored.build.broken_why,
        here_allowed=stored.here_reason is not None,
    )


def patience_of(stored: StoredBuild) -> Patience:
    """Return what the submitter said about waiting."""
    return Patience(
        if_nobody=stored.submit.if_nobody,
        busy_for=timedelta(seconds=stored.submit.max_queue_wait_seconds),
        since=stored.queued_since,
        idle_since=stored.idle_since or stored.queued_since,
    )


def facts_of(runner: StoredRunner, busy: int, now: datetime) -> RunnerFacts:
    """Return a runner as it stands; `busy`: how many builds it has."""
    session = runner.session
    slots = runner.capabilities.slots if runner.capabilities else 0
    return RunnerFacts(
        name=runner.name,
        here=runner.here,
        online=session is not None and is_alive(session, now=now, silence=OFFLINE_AFTER),
        stopped=session is not None and session.ended,
        joined_at=runner.created_at,
        refuses_since=runner.refuses_since if runner.reason else None,
        seen_at=session.seen_at if session else None,
        capabilities=runner.capabilities,
        free_slots=0 if runner.reason else max(0, slots - busy),
        opens_secrets=session is not None and session.public_key is not None,
        reason=runner.reason or (f"busy: {busy} of {slots} builds" if busy else None),
    )


def all_facts(ledger: Ledger, now: datetime) -> Sequence[RunnerFacts]:
    """Return all runners as they stand."""
    held = Counter(attempt.runner for attempt in ledger.live_attempts())
    return [facts_of(runner, held[runner.name], now) for runner in ledger.runners()]
