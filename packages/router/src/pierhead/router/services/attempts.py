"""What an attempt does with its build: renew, log, release, report. The fence proves the hold."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from pierhead.protocol.codec import to_wire
from pierhead.protocol.digest import digest_of, same_digest
from pierhead.protocol.errors import Invalid
from pierhead.protocol.lease import Heartbeat, LogAccepted, Release, Renewed, Sealed, Signals
from pierhead.protocol.problem import problem
from pierhead.protocol.result import Envelope, Failure, Receipt
from pierhead.router.domain import build as machine
from pierhead.router.domain.errors import (
    NotAllowed,
    NotFound,
    Refused,
    ResultMismatch,
    SecretsLost,
)
from pierhead.router.domain.logbook import LOG_BYTES_MAX, skip
from pierhead.router.domain.naming import attempt_name, reference
from pierhead.router.domain.reason import with_reason
from pierhead.router.domain.token import Attempt
from pierhead.router.domain.waiting import WaitingPolicy, somebody_else
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.ports.vault import Vault
from pierhead.router.services.bells import Bells
from pierhead.router.services.facts import all_facts, wanted_of
from pierhead.router.services.images import ReadBlob, true_envelope
from pierhead.router.services.intake import Intake, Intakes, patterns_of, without_secrets
from pierhead.router.services.lifecycle import Lifecycle, announce
from pierhead.router.services.steps import Ended, Steps
from pierhead.router.services.sweep import consider_here

# Looking for secrets in so much takes a millisecond, and a thread as long to be woken.
SMALL_PART_BYTES: Final = 8 * 1024
FORGED: Final = "the image that was reported is not the one that was pushed or asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """What the holder of a build token may do."""

    store: Store
    lifecycle: Lifecycle
    waiting: WaitingPolicy
    bells: Bells
    logs: Logs
    clock: Clock
    read_blob: ReadBlob
    vault: Vault
    intakes: Intakes
    steps: Steps
    # Two parts of one log may arrive at once; their sizes must not be looked at in between.
    writing: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def held(self, attempt: Attempt) -> StoredBuild:
        """Return the build of an attempt that still holds it."""
        return await self.store.read(lambda ledger: self._held(ledger, attempt))

    async def secrets(self, attempt: Attempt) -> Sealed:
        """Return the build's secrets, sealed to the session that holds it.

        Raises:
            SecretsLost: they cannot be read any more.
            NotAllowed: the session has no key, so nothing can be sealed to it.
        """
        stored, locked, key = await self.store.read(lambda ledger: self._locked(ledger, attempt))
        if key is None:
            raise NotAllowed("the session has no public key", hint="upgrade the runner")
        values = self.vault.unlock(stored.id, locked)
        if tuple(sorted(values)) != stored.submit.plan.secrets:
            raise SecretsLost(f"secrets of {stored.id} are missing", hint="submit it again")
        return self.vault.seal(values, recipient=key, build_id=stored.id, fence=stored.build.fence)

    def _locked(
        self, ledger: Ledger, attempt: Attempt
    ) -> tuple[StoredBuild, Mapping[str, bytes], bytes | None]:
        stored = self._held(ledger, attempt)
        lease = stored.build.lease
        runner = ledger.runner(lease.runner) if lease else None
        session = runner.session if runner else None
        # A lease ends with its session; should it ever not, the next session gets nothing of it.
        same = session is not None and lease is not None and session.id == lease.session
        return stored, ledger.secrets(stored.id), session.public_key if session and same else None

    async def renew(self, attempt: Attempt, beat: Heartbeat) -> Renewed:
        """Renew the lease."""
        command, now = machine.Renew(attempt.fence, beat.phase), self.clock.now()

        def operation(ledger: Ledger) -> StoredBuild:
            known = self._known(ledger, attempt)
            if beat.phase == "pushing" and known.build.phase != "pushing":
                self.steps.end(ledger, known, "done", now)  # what follows is not the step's
            return self.lifecycle.apply(ledger, known, command, now)

        stored = await self.store.write(operation)
        if beat.phase is not None:
            self.bells.changed(stored.id)
        policy = self.lifecycle.policy
        return Renewed(
            lease_ttl_ms=_ms(policy.ttl.total_seconds()),
            renew_in_ms=_ms(policy.renew_every.total_seconds()),
            cancel_requested=stored.build.cancel is not None,
        )

    async def signals(self, attempt: Attempt, hold_seconds: float) -> Signals:
        """Wait until the build should end, at most so long."""
        with self.bells.watch(attempt.build_id) as ring:
            stored = await self.held(attempt)
            if stored.build.cancel is None:
                await self.bells.wait(ring, hold_seconds)
                stored = await self.held(attempt)
        return Signals(cancel_requested=stored.build.cancel is not None)

    async def append_log(self, attempt: Attempt, offset: int, data: bytes) -> LogAccepted:
        """Store a part of the log for good, and take it as a sign of life.

        Raises:
            OffsetMismatch: bytes before it are missing.
        """
        stored = await self._apply(attempt, machine.Renew(attempt.fence))
        lock = self.writing.setdefault(stored.id, asyncio.Lock())
        async with lock:
            following = await self._append(stored, attempt.fence, offset, data)
        return LogAccepted(next_offset=following, cancel_requested=stored.build.cancel is not None)

    async def _append(self, stored: StoredBuild, fence: int, offset: int, data: bytes) -> int:
        """Append what is new of a part, and return where the attempt's log ends now."""
        prefix = stored.log_prefix
        size = self.logs.size(stored.id, fence)
        known = skip(size - prefix, offset, len(data))
        if size + len(data) - known > LOG_BYTES_MAX + prefix:
            detail = f"a log is at most {LOG_BYTES_MAX} bytes"
            raise Invalid(problem("too-large", detail, hint="keep its head and its tail"))
        if known < len(data):
            await self._keep(
                await self._intake(stored, fence), stored.id, fence, size, data[known:]
            )
            await self.steps.note(stored.id, fence, size)
            self.bells.changed(stored.id)
        return max(size - prefix, offset + len(data))

    async def _keep(
        self, intake: Intake, build_id: str, fence: int, size: int, part: bytes
    ) -> None:
        hidden, shown = 0, part
        if intake.patterns and len(part) > SMALL_PART_BYTES:
            hidden, shown = await asyncio.to_thread(intake.look, part)
        elif intake.patterns:
            hidden, shown = intake.look(part)
        if hidden:
            await self.logs.hide(build_id, fence, size - hidden, hidden)
        await self.logs.append(build_id, fence, size, shown)
        intake.accept(part)

    async def _intake(self, stored: StoredBuild, fence: int) -> Intake:
        known = self.intakes.get(stored.id, fence)
        if known is not None:
            return known
        patterns = await self.store.read(lambda ledger: patterns_of(ledger, self.vault, stored))
        return await self.intakes.begin(stored, fence, patterns)

    async def release(self, attempt: Attempt, request: Release) -> StoredBuild:
        """Give the build back to the queue."""
        command = machine.Release(attempt.fence, request.reason, request.detail)
        now = self.clock.now()
        stored = await self.store.write(
            lambda ledger: self._released(ledger, self._known(ledger, attempt), command, now)
        )
        self.intakes.end(stored.id, attempt.fence)
        announce(self.bells, stored)
        return stored

    async def report(self, attempt: Attempt, envelope: Envelope) -> Receipt:
        """Take the result, once.

        Raises:
            ResultMismatch: the image is not what was pushed or asked for; the build has failed.
        """
        now = self.clock.now()
        stored = await self.store.read(lambda ledger: self._known(ledger, attempt))
        lock = self.writing.setdefault(stored.id, asyncio.Lock())
        async with lock:
            intake = await self._intake(stored, attempt.fence)
        size = self.logs.size(stored.id, attempt.fence) - stored.log_prefix
        said = envelope.log_digest or digest_of(b"")
        whole = same_digest(intake.received.digest(), said) and size == envelope.log_bytes
        after, forged = await self.store.write(
            lambda ledger: self._report(ledger, attempt, envelope, whole, now)
        )
        self.intakes.end(stored.id, attempt.fence)
        announce(self.bells, after)
        if forged is not None:
            raise forged
        return msgspec.convert(
            {
                "build_id": after.id,
                "fence": attempt.fence,
                "state": after.build.state.value,
                "reference": after.reference,
            },
            Receipt,
        )

    def _report(
        self, ledger: Ledger, attempt: Attempt, envelope: Envelope, whole: bool, now: datetime
    ) -> tuple[StoredBuild, Refused | None]:
        stored = self._known(ledger, attempt)
        result = digest_of(to_wire(envelope))
        if stored.build.state in machine.FINAL:
            command = machine.Report(attempt.fence, envelope.outcome, result)
            return self.lifecycle.apply(ledger, stored, command, now), None
        forged: Refused | None = None
        try:
            envelope = self._checked(ledger, stored, attempt, envelope)
        except ResultMismatch as mismatch:
            # A forged result ends the build: it is never a reason to try again elsewhere.
            forged = mismatch
            told = f"{FORGED}: {mismatch}" if envelope.outcome == "succeeded" else str(mismatch)
            failure = Failure(cause="integrity", message=told[:1000])
            envelope = Envelope(outcome="failed", failure=failure)
        envelope = without_secrets(envelope, patterns_of(ledger, self.vault, stored))
        if (why := self._reason_to_leave(ledger, stored, attempt, envelope, now)) is not None:
            release = machine.Release(attempt.fence, "unhealthy", why)
            return self._released(ledger, stored, release, now), None
        if envelope.outcome != "cancelled":
            ended: Ended = "done" if envelope.outcome == "succeeded" else "failed"
            self.steps.end(ledger, stored, ended, now)
        command = machine.Report(attempt.fence, envelope.outcome, result)
        published = envelope.outcome == "succeeded" and stored.build.cancel is None
        published = published and stored.parent is None  # else nobody sees it yet
        digest = envelope.manifest_digest if published else None
        settled = replace(
            stored,
            envelope=envelope,
            log_complete=whole,
            reference=reference(self.lifecycle.host, stored.submit.project, digest)
            if digest
            else None,
        )
        return self.lifecycle.apply(ledger, settled, command, now), forged

    def _released(
        self, ledger: Ledger, stored: StoredBuild, command: machine.Release, now: datetime
    ) -> StoredBuild:
        """Let the build wait again. Where it goes is judged before the runner that broke asks."""
        after = self.lifecycle.apply(ledger, stored, command, now)
        if command.reason != "unhealthy":
            return after
        facts = all_facts(ledger, now)
        return consider_here(self.lifecycle, self.waiting, ledger, after, facts, now)

    def _reason_to_leave(
        self,
        ledger: Ledger,
        stored: StoredBuild,
        attempt: Attempt,
        envelope: Envelope,
        now: datetime,
    ) -> str | None:
        """Say why a failure is the runner's, and somebody else should try; none: it is a result."""
        failure, lease = envelope.failure, stored.build.lease
        if failure is None or failure.fault == "build" or lease is None:
            return None
        runners, wanted = all_facts(ledger, now), wanted_of(stored)
        wanted = replace(wanted, broken_on=wanted.broken_on | {lease.runner})
        others = somebody_else(wanted, stored.submit.if_nobody, runners)
        policy = self.lifecycle.policy
        if machine.is_left(
            stored.build, attempt.fence, failure.fault, others=others, policy=policy
        ):
            return ": ".join(filter(None, (failure.message, failure.detail)))[:1000]
        return None

    def _checked(
        self, ledger: Ledger, stored: StoredBuild, attempt: Attempt, envelope: Envelope
    ) -> Envelope:
        """Compare a result with what is known of the build, and return what is true of it.

        Raises:
            ResultMismatch: it says what cannot be.
        """
        name = attempt_name(stored.id, attempt.fence)
        if envelope.outcome == "succeeded":
            built = msgspec.structs.replace(envelope, failure=None)
            return true_envelope(ledger, stored, name, built, self.read_blob)
        held = stored.build.lease is not None and stored.build.lease.fence == attempt.fence
        if envelope.outcome == "cancelled" and stored.build.cancel is None and held:
            # Runners hear of the wish from the router alone.
            raise ResultMismatch(
                "its runner says that the build was cancelled, and nobody asked for that"
            )
        return with_reason(envelope) if envelope.outcome == "failed" else envelope

    async def _apply(self, attempt: Attempt, command: machine.Command) -> StoredBuild:
        now = self.clock.now()

        def operation(ledger: Ledger) -> StoredBuild:
            return self.lifecycle.apply(ledger, self._known(ledger, attempt), command, now)

        return await self.store.write(operation)

    def _known(self, ledger: Ledger, attempt: Attempt) -> StoredBuild:
        stored = ledger.build(attempt.build_id)
        if stored is None:
            raise NotFound(f"there is no build {attempt.build_id}")
        return stored

    def _held(self, ledger: Ledger, attempt: Attempt) -> StoredBuild:
        stored = self._known(ledger, attempt)
        machine.require_held(stored.build, attempt.fence)
        return stored


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
