"""Runners come in, begin to work, and take builds."""

import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from pierhead.protocol.ids import RunnerName
from pierhead.protocol.joincode import NO_PIN, JoinAddress
from pierhead.protocol.lease import Acquire, Acquired, Grant, Held
from pierhead.protocol.runner import (
    AddRunner,
    Enroll,
    Enrolled,
    JoinCode,
    RunnerView,
    Session,
    SessionRelease,
    SessionRequest,
)
from pierhead.router.domain import build as machine
from pierhead.router.domain import session as sessions
from pierhead.router.domain.enrollment import LIFETIME, Code, spend
from pierhead.router.domain.errors import (
    InvalidRequest,
    NotAllowed,
    NotFound,
    RunnerNameTaken,
    SessionSuperseded,
    UnknownMachine,
)
from pierhead.router.domain.matching import RunnerFacts, choose_builds
from pierhead.router.domain.token import (
    RUNNER_PREFIX,
    Principal,
    Runner,
    build_token,
    derived_secret,
    require_owner,
    token_hash,
)
from pierhead.router.domain.turns import in_turn, one_of_each
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.machines import StoredRunner
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock, Entropy
from pierhead.router.ports.vault import Vault
from pierhead.router.services.bells import Bells
from pierhead.router.services.facts import OFFLINE_AFTER, all_facts, facts_of, wanted_of
from pierhead.router.services.lifecycle import Lifecycle, announce, as_it_is
from pierhead.router.services.views import runner_view

HOLD_MS: Final = 25_000
HERE: Final = "here"
# Clients that come back to a server that stops are spread over this much time.
DRAIN_RETRY_MS: Final = 500
LOOKED_AT_ONCE: Final = 64  # of the queue: usually the first of them are taken


@dataclass(frozen=True, slots=True)
class WayIn:
    """What a join code says of this control plane."""

    address: str  # host:port
    pins: Callable[[], tuple[str | None, str]]  # of the authority, and of the server's key


@dataclass(frozen=True, slots=True, kw_only=True)
class Expelled:
    """Who has to join again, and how many join codes ended."""

    runners: tuple[str, ...]
    codes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runners:
    """What the owner and the runners themselves may do with runners."""

    store: Store
    lifecycle: Lifecycle
    bells: Bells
    clock: Clock
    entropy: Entropy
    key: bytes  # of this installation; derives tokens
    vault: Vault
    way_in: WayIn

    async def add(self, principal: Principal, request: AddRunner) -> JoinCode:
        """Make a join code."""
        require_owner(principal)
        secret, now = self.entropy.secret(), self.clock.now()

        def operation(ledger: Ledger) -> None:
            known = ledger.runner(request.name)
            if request.name == HERE or (known is not None and not known.is_expelled):
                raise _taken(request.name)
            code = Code(runner=request.name, expires_at=now + LIFETIME)
            ledger.save_code(token_hash(secret), code)

        await self.store.write(operation)
        pin, key_pin = self.way_in.pins()
        code = JoinAddress(address=self.way_in.address, pin=pin or NO_PIN, secret=secret)
        return JoinCode(
            name=request.name,
            code=str(code),
            key_pin=key_pin,
            expires_in_seconds=int(LIFETIME.total_seconds()),
        )

    async def remove(self, principal: Principal, name: str) -> RunnerView:
        """Forget a runner: its credential ends, and what it was building waits again.

        Raises:
            NotFound: there is none of this name.
            NotAllowed: it is this machine's own.
        """
        require_owner(principal)
        now = self.clock.now()
        removed, lost = await self.store.write(lambda ledger: self._remove(ledger, name, now))
        announce(self.bells, *lost)
        self.bells.wake_runner(name)
        return removed

    def _remove(
        self, ledger: Ledger, name: str, now: datetime
    ) -> tuple[RunnerView, Sequence[StoredBuild]]:
        known = ledger.runner(name)
        if known is None:
            raise NotFound(f"there is no runner {name[:63]}", hint="list them: pierhead nodes")
        if known.here:
            hint = "a control plane that builds nothing itself: pierhead serve --no-here"
            raise NotAllowed("this machine's own runner is not removed", hint=hint)
        held = [
            (stored, stored.build.lease)
            for stored in ledger.leased(runner=name)
            if stored.build.lease
        ]
        view = runner_view(facts_of(known, len(held), now), tuple(stored.id for stored, _ in held))
        lost = [
            self.lifecycle.apply(
                ledger, as_it_is(ledger, stored), _lost(lease, "its runner was removed"), now
            )
            for stored, lease in held
        ]
        ledger.delete_runner(name)
        return view, lost

    async def expel_all(self) -> Expelled:
        """Let in nobody again who is elsewhere: all credentials end, and all join codes.

        The names stay, and with them what is known of each machine: it joins again by a new code.
        """
        now = self.clock.now()
        expelled, lost = await self.store.write(lambda ledger: self._expel(ledger, now))
        announce(self.bells, *lost)
        for name in expelled.runners:
            self.bells.wake_runner(name)
        return expelled

    def _expel(self, ledger: Ledger, now: datetime) -> tuple[Expelled, Sequence[StoredBuild]]:
        elsewhere = [known for known in ledger.runners() if not known.here]
        lost = [
            self.lifecycle.apply(
                ledger, as_it_is(ledger, stored), _lost(lease, "its runner has to join again"), now
            )
            for known in elsewhere
            for stored in ledger.leased(runner=known.name)
            if (lease := stored.build.lease)
        ]
        for known in elsewhere:
            session = known.session and replace(known.session, silent_at=now)
            gone = replace(known, credential_hash="", authorities=None, session=session)
            ledger.save_runner(gone)
        names = tuple(known.name for known in elsewhere)
        return Expelled(runners=names, codes=ledger.revoke_codes(now)), lost

    async def enroll(self, request: Enroll) -> Enrolled:
        """Turn a join code into a credential; the same machine may ask again."""
        hashed, now = token_hash(request.secret), self.clock.now()
        credential = RUNNER_PREFIX + derived_secret(self.key, "runner", hashed, request.nonce)

        def operation(ledger: Ledger) -> str:
            code = spend(ledger.code(hashed), request.name, request.nonce, now=now)
            ledger.save_code(hashed, code)
            known = ledger.runner(code.runner)
            if known is None or known.is_expelled:
                new = _new_runner(code.runner, credential, now)
                ledger.save_runner(replace(new, state_id=request.state_id or None))
            elif not hmac.compare_digest(known.credential_hash, token_hash(credential)):
                raise _taken(code.runner)  # by another code for the same name; this one stays good
            return code.runner

        return Enrolled(name=await self.store.write(operation), credential=credential)

    async def enroll_here(self) -> str:
        """Return a fresh credential for the runner on this machine; older ones end."""
        credential, now = RUNNER_PREFIX + self.entropy.secret(), self.clock.now()

        def operation(ledger: Ledger) -> None:
            known = ledger.runner(HERE) or _new_runner(HERE, credential, now)
            ledger.save_runner(
                replace(known, here=True, state_id=None, credential_hash=token_hash(credential))
            )

        await self.store.write(operation)
        return credential

    async def open_session(self, runner: Runner, request: SessionRequest) -> Session:
        """Begin to work: what an earlier process of the runner held waits again at once.

        Raises:
            InvalidRequest: the public key is none that anything can be sealed to.
            SessionSuperseded: another process of the runner is at work.
        """
        if request.public_key is not None and not self.vault.usable(request.public_key):
            raise InvalidRequest("the session's public key is none that can be sealed to")
        session_id, now = self.entropy.id("s_"), self.clock.now()
        session, lost = await self.store.write(
            lambda ledger: self._open(ledger, runner, request, session_id, now)
        )
        announce(self.bells, *lost)
        policy = self.lifecycle.policy
        return Session(
            session_id=session.id,
            lease_ttl_ms=_ms(policy.ttl),
            renew_in_ms=_ms(policy.renew_every),
            hold_ms=HOLD_MS,
        )

    def _open(
        self,
        ledger: Ledger,
        runner: Runner,
        request: SessionRequest,
        session_id: str,
        now: datetime,
    ) -> tuple[sessions.Session, Sequence[StoredBuild]]:
        known = _registered(ledger, runner)
        sessions.check_copy(known.state_id, request.state_id, runner.name)
        current = known.session
        # An idle runner is silent for as long as its acquire is held: longer than a lease.
        new = sessions.admit(
            current,
            request.process,
            request.boot_id,
            request.started_ms,
            now=now,
            silence=OFFLINE_AFTER,
        )
        if current is None or new:
            current = sessions.Session(
                id=session_id,
                runner=runner.name,
                process=request.process,
                boot_id=request.boot_id,
                started_ms=request.started_ms,
                seen_at=now,
                public_key=request.public_key,
            )
            # What an earlier process said of itself is over with it.
            known = replace(known, reason=None, refuses_since=None)
        slots = request.capabilities.slots
        ledger.save_runner(
            replace(
                known,
                session=current,
                state_id=request.state_id or None,
                capabilities=request.capabilities,
                slots=slots,
            )
        )
        lost = [
            self.lifecycle.apply(
                ledger, as_it_is(ledger, stored), _lost(lease, "its runner was restarted"), now
            )
            for stored in ledger.leased(runner=runner.name)
            if (lease := stored.build.lease) and lease.session != current.id
        ]
        return current, lost

    async def release(self, runner: Runner, request: SessionRelease) -> RunnerView:
        """End a session in good order: builds that would wait for the runner need not."""
        now = self.clock.now()
        view, back = await self.store.write(
            lambda ledger: self._end(ledger, runner, request.session_id, now)
        )
        announce(self.bells, *back)
        self.bells.wake_runner(runner.name)  # a request that is still held has nobody behind it
        return view

    def _end(
        self, ledger: Ledger, runner: Runner, session_id: str, now: datetime
    ) -> tuple[RunnerView, Sequence[StoredBuild]]:
        known, back = _registered(ledger, runner), []
        session = known.session
        if session is not None and session.id == session_id:
            known = replace(known, session=replace(session, ended=True))
            ledger.save_runner(known)
            # What was granted while it went: it never began, so no attempt is counted.
            back = [
                self.lifecycle.apply(ledger, stored, machine.Release(lease.fence, "draining"), now)
                for stored in ledger.leased(session=session_id)
                if (lease := stored.build.lease)
            ]
        return runner_view(facts_of(known, 0, now), ()), back

    async def acquire(self, runner: Runner, request: Acquire) -> Acquired:
        """Grant builds, or wait for some; the repeat of a request gets the same grant."""
        # A sign of life is when the request came, not when the hold ends: who has sent it may be
        # gone by then.
        arrived = self.clock.now()
        left = min(request.hold_ms, HOLD_MS) / 1000  # seconds
        parked = None
        try:
            while True:
                if self.bells.draining:
                    return Acquired(retry_after_ms=DRAIN_RETRY_MS)
                answer, facts, lost = await self._take(runner, request, arrived)
                announce(self.bells, *lost)
                for grant in answer.grants:
                    self.bells.changed(grant.build_id)
                if answer.grants or answer.drop or left <= 0:
                    return answer
                if parked is None:
                    # Look once more after this: a build may have come in between.
                    parked = self.bells.park(facts)
                    continue
                parked.facts = facts  # it may have been given up meanwhile
                left = await self.bells.wait_for_work(parked, left)
                if parked.displaced:
                    return Acquired()
        finally:
            if parked is not None:
                self.bells.leave(parked)

    async def _take(
        self, runner: Runner, request: Acquire, arrived: datetime
    ) -> tuple[Acquired, RunnerFacts, Sequence[StoredBuild]]:
        now = self.clock.now()
        return await self.store.write(
            lambda ledger: self._take_in(ledger, runner, request, arrived, now)
        )

    def _take_in(
        self, ledger: Ledger, runner: Runner, request: Acquire, arrived: datetime, now: datetime
    ) -> tuple[Acquired, RunnerFacts, Sequence[StoredBuild]]:
        known = _registered(ledger, runner)
        session = known.session
        if session is None or session.id != request.session_id:
            hint = "one credential is for one process on one machine"
            raise SessionSuperseded(f"another process of {runner.name} is at work", hint=hint)
        if session.ended:
            # Stuck on its way, or held when the process ended: nobody is there to take a build.
            raise SessionSuperseded(f"this process of {runner.name} has ended its session")
        if sessions.is_overtaken(session, request.turn):
            return Acquired(), facts_of(known, 0, now), ()
        reason = request.reason if request.slots == 0 else None
        known = replace(
            known,
            session=replace(session, seen_at=max(session.seen_at, arrived), turn=request.turn),
            slots=request.slots,
            reason=reason,
            refuses_since=(known.refuses_since or arrived) if reason else None,
            authorities=request.authorities,
        )
        ledger.save_runner(known)
        mine = {stored.id: stored for stored in ledger.leased(session=session.id)}
        leases = [(build_id, stored.build.lease) for build_id, stored in mine.items()]
        compared = sessions.reconcile(
            [(build_id, lease) for build_id, lease in leases if lease],
            request.held,
            request.request_id,
        )
        lost = [
            self.lifecycle.apply(
                ledger,
                as_it_is(ledger, mine[build_id]),
                _lost(mine[build_id].build.lease, "its runner lost it"),
                now,
            )
            for build_id in compared.lost
        ]
        # The runner counts from when it sent the repeat, so the router does, too.
        granted = [
            self.lifecycle.apply(
                ledger,
                as_it_is(ledger, mine[build_id]),
                machine.Renew(mine[build_id].build.fence),
                now,
            )
            for build_id in compared.granted
        ]
        facts = facts_of(known, len(request.held) + len(granted), now)
        facts = replace(facts, free_slots=request.slots, reason=known.reason)
        if not granted and request.slots:
            granted = self._grant(ledger, facts, session.id, request, now)
        grants = tuple(self._wire_grant(stored) for stored in granted)
        return Acquired(grants=grants, drop=_sorted(compared.drop)), facts, lost

    def _grant(
        self,
        ledger: Ledger,
        facts: RunnerFacts,
        session_id: str,
        request: Acquire,
        now: datetime,
    ) -> list[StoredBuild]:
        able = facts.capabilities
        looks_around = facts.here or (able is not None and bool(able.emulated))
        command = machine.Grant(facts.name, session_id, request.request_id)
        chosen = _chosen(ledger, facts, now, looks_around=looks_around)
        return [self.lifecycle.apply(ledger, stored, command, now) for stored in chosen]

    def _wire_grant(self, stored: StoredBuild) -> Grant:
        lease = stored.build.lease
        assert lease is not None
        policy = self.lifecycle.policy
        return Grant(
            build_id=stored.id,
            fence=lease.fence,
            token=build_token(self.key, stored.id, lease.fence, lease.request_id),
            project=stored.submit.project,
            plan=stored.submit.plan,
            context=stored.submit.context,
            repository=stored.submit.project,
            preview=stored.preview,
            mirror=True,
            lease_ttl_ms=_ms(policy.ttl),
            renew_in_ms=_ms(policy.renew_every),
        )


def _chosen(
    ledger: Ledger, facts: RunnerFacts, now: datetime, *, looks_around: bool
) -> Sequence[StoredBuild]:
    """Return the builds that a runner gets; no more of the queue is read than has to be."""
    look = _Look(ledger, facts, now, looks_around=looks_around)
    return one_of_each(map(look.fitting, in_turn(ledger.line())), facts.free_slots)


class _Look:
    """One runner's look through the queue."""

    def __init__(
        self, ledger: Ledger, facts: RunnerFacts, now: datetime, *, looks_around: bool
    ) -> None:
        self._ledger, self._facts, self._now = ledger, facts, now
        self._looks_around = looks_around

    def fitting(self, project: str) -> Iterator[StoredBuild]:
        """Yield what the runner would take of a project, oldest first; more than it may take."""
        after = 0
        while some := self._ledger.queued(after, LOOKED_AT_ONCE, project=project):
            wanted = [wanted_of(stored) for stored in some]
            around = self._looks_around or any(self._facts.name in one.broken_on for one in wanted)
            found = set(choose_builds(self._facts, wanted, self._others if around else ()))
            yield from (stored for stored in some if stored.id in found)
            after = some[-1].sequence

    @cached_property
    def _others(self) -> Sequence[RunnerFacts]:
        everybody = all_facts(self._ledger, self._now)
        return [other for other in everybody if other.name != self._facts.name]


def _taken(name: str) -> RunnerNameTaken:
    hint = f"choose another name, or let the old one go first: pierhead nodes remove {name}"
    return RunnerNameTaken(f"there is a runner {name} already", hint=hint)


def _registered(ledger: Ledger, runner: Runner) -> StoredRunner:
    known = ledger.runner(runner.name)
    if known is None or known.is_expelled:  # while it waited
        raise UnknownMachine
    return known


def _new_runner(name: RunnerName, credential: str, now: datetime) -> StoredRunner:
    return StoredRunner(name=name, credential_hash=token_hash(credential), created_at=now)


def _lost(lease: machine.Lease | None, reason: str) -> machine.Lose:
    assert lease is not None
    return machine.Lose(lease.fence, f"{lease.runner}: {reason}")


def _sorted(drop: tuple[Held, ...]) -> tuple[Held, ...]:
    return tuple(sorted(drop, key=lambda held: (held.build_id, held.fence)))


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
