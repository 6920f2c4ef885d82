"""What happens because time passed: silent attempts, builds that nobody takes, missed wake-ups."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pierhead.protocol.result import Envelope, Failure
from pierhead.router.domain.build import Expire, GiveUp, LeasePolicy, State, given_up
from pierhead.router.domain.matching import RunnerFacts
from pierhead.router.domain.waiting import Here, NoHope, WaitingPolicy, judge
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.bells import Bells
from pierhead.router.services.facts import all_facts, patience_of, wanted_of
from pierhead.router.services.lifecycle import Lifecycle, announce, as_it_is, what_broke

EVERY: Final = timedelta(seconds=1)
# A sweep that comes later than this was not only held up.
STOOD_STILL: Final = 3 * EVERY
# Of a long queue some are looked at each second, in turn: whoever heartbeats waits meanwhile.
JUDGED_AT_ONCE: Final = 200


@dataclass(slots=True)
class Turn:
    """Up to which sequence the queue was looked at."""

    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Looks at all open builds, once each second."""

    store: Store
    lifecycle: Lifecycle
    bells: Bells
    clock: Clock
    waiting: WaitingPolicy
    turn: Turn = field(default_factory=Turn)

    async def once(self) -> None:
        """Expire, decide who waited long enough, and wake whoever can take what waits."""
        now = self.clock.now()
        if await self.store.read(_quiet):
            return
        changed = await self.store.write(lambda ledger: self._sweep(ledger, now))
        announce(self.bells, *changed)

    def _sweep(self, ledger: Ledger, now: datetime) -> Sequence[StoredBuild]:
        ledger.mark_alive(now)
        changed = []
        for listed in ledger.leased(until=given_up(now, self.lifecycle.policy)):
            stored = as_it_is(ledger, listed)
            after = self.lifecycle.apply(ledger, stored, Expire(), now)
            if after != stored:
                changed.append(after)
        facts = all_facts(ledger, now)
        waiting = ledger.queued(self.turn.after, JUDGED_AT_ONCE)
        self.turn.after = waiting[-1].sequence if len(waiting) == JUDGED_AT_ONCE else 0
        for stored in waiting:
            changed.append(consider_here(self.lifecycle, self.waiting, ledger, stored, facts, now))
        return changed

    async def anything_open(self) -> bool:
        """Say whether any build waits or runs."""
        return not await self.store.read(_quiet)

    async def recover(self) -> timedelta:
        """After a start: give every attempt the time in which nobody accepted its heartbeats.

        Return how long that was.
        """
        now = self.clock.now()

        def operation(ledger: Ledger) -> timedelta:
            alive_at = ledger.alive_at() or now
            for stored in ledger.leased():
                ledger.save_build(extended(stored, alive_at, now, self.lifecycle.policy))
            ledger.mark_alive(now)
            return now - alive_at

        return await self.store.write(operation)

    async def recover_from_sleep(self) -> None:
        """The same when it comes so late that the machine slept, or its clock jumped.

        The heartbeats of that time wait to be taken, and no lease may be judged before.
        """
        late = self.clock.now() - max(self.lifecycle.policy.ttl / 2, STOOD_STILL)
        if await self.store.read(lambda ledger: not _quiet(ledger) and _alive(ledger) < late):
            await self.recover()


def extended(
    stored: StoredBuild, alive_at: datetime, now: datetime, policy: LeasePolicy
) -> StoredBuild:
    """Return a leased build whose lease lasts longer by the time in which nobody took heartbeats.

    A lease that was renewed later than the last noted sign of life proves a later one.
    """
    lease = stored.build.lease
    assert lease is not None
    outage = now - max(alive_at, lease.expires_at - policy.ttl)
    longer = replace(lease, expires_at=lease.expires_at + max(outage, timedelta()))
    return replace(stored, build=replace(stored.build, lease=longer))


def _alive(ledger: Ledger) -> datetime:
    """Return when the control plane last took heartbeats; before it ever did: never too late."""
    return ledger.alive_at() or datetime.max.replace(tzinfo=UTC)


def _quiet(ledger: Ledger) -> bool:
    """Nothing is open: leave the disk alone."""
    return not ledger.queue_length() and not ledger.live_attempts()


def consider_here(
    lifecycle: Lifecycle,
    policy: WaitingPolicy,
    ledger: Ledger,
    stored: StoredBuild,
    facts: Sequence[RunnerFacts],
    now: datetime,
) -> StoredBuild:
    """Judge a queued build's waiting, and store what follows from it."""
    stored = as_it_is(ledger, stored)
    if stored.build.state is not State.QUEUED:
        return stored  # its sibling just ended it
    verdict = judge(wanted_of(stored), patience_of(stored), facts, now=now, policy=policy)
    match verdict:
        case Here(reason) if stored.here_reason is None:
            allowed = replace(stored, here_reason=reason)
            ledger.save_build(allowed)
            return allowed
        case NoHope(cause, detail):
            failure = Failure(
                cause=cause,
                message=detail,
                detail=what_broke(stored),
                hint="pierhead builds why " + stored.id,
            )
            envelope = Envelope(outcome="failed", failure=failure)
            return lifecycle.apply(ledger, replace(stored, envelope=envelope), GiveUp(cause), now)
        case _:
            return stored
