"""Carries out a command on a stored build: decide, keep the effects, finish what has ended.

Everything happens inside the caller's transaction, so a build never changes without its event, and
an image never becomes visible without the result that names it.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, assert_never

import msgspec

from pierhead.protocol import build as wire
from pierhead.protocol.result import Envelope, Failure
from pierhead.protocol.units import size
from pierhead.router.domain import build as machine
from pierhead.router.domain import parent as family
from pierhead.router.domain.naming import attempt_name
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.store import Ledger
from pierhead.router.services.bells import Bells
from pierhead.router.services.facts import wanted_of
from pierhead.router.services.join import joined
from pierhead.router.services.views import view_of

# The first line of the log of each build that this machine builds itself.
NOTE: Final = (
    "note: built here{}. Limited to {} of memory and the lowest CPU priority, so that whatever "
    "else runs on this machine keeps its share.\n"
)
ALONE: Final = ", as there is no other runner"
# And that of each build that another runner takes over.
MOVED: Final = "note: built on {}, as {} could not build it: {}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """What commands on builds need; one for the whole router."""

    policy: machine.LeasePolicy
    logs: Logs
    host: str  # of references: what clients pull from

    def apply(
        self, ledger: Ledger, stored: StoredBuild, command: machine.Command, now: datetime
    ) -> StoredBuild:
        """Apply one command and return the build as stored afterwards.

        A child's parent hears of it in the same transaction, and so may its siblings.

        Raises:
            Refused: the build's state does not allow it; nothing was changed.
        """
        if isinstance(stored.build, family.Parent):
            assert isinstance(command, machine.Cancel), "no runner ever has a parent"
            return self._apply_to_parent(ledger, stored, stored.build, command, now)
        changed, effects = machine.decide(stored.build, command, now=now, policy=self.policy)
        after = replace(stored, build=changed)
        for effect in effects:
            after = self._follow(ledger, after, effect, now)
        ended = after.build.state in machine.FINAL and stored.build.state not in machine.FINAL
        if ended and after.envelope is not None:
            attempts, where = after.build.attempts, after.last_runner
            told = msgspec.structs.replace(after.envelope, attempts=attempts, where=where)
            after = replace(after, envelope=told)
        if after != stored:
            ledger.save_build(after)
        if ended:
            self._end(ledger, after)
        if after.parent is not None and after.build.state is not stored.build.state:
            self._tell_parent(ledger, after, after.parent, now)
        return after

    def _end(self, ledger: Ledger, stored: StoredBuild) -> None:
        ledger.forget_secrets(stored.id)
        self.record(ledger, stored, wire.Finished(cursor="", build=view_of(stored)))

    def _tell_parent(
        self, ledger: Ledger, child: StoredBuild, parent_id: str, now: datetime
    ) -> None:
        stored = ledger.build(parent_id)
        assert stored is not None
        parent = stored.build
        assert isinstance(parent, family.Parent)
        heard = family.Heard(child.id, child.build.state, child.build.cancel)
        if child.build.state is machine.State.LEASED:
            where = {*filter(None, (stored.last_runner or "").split(", ")), child.last_runner or ""}
            began = stored.started_at or now
            stored = replace(stored, started_at=began, last_runner=", ".join(sorted(where)))
        self._apply_to_parent(ledger, stored, parent, heard, now)

    def _apply_to_parent(
        self,
        ledger: Ledger,
        stored: StoredBuild,
        parent: family.Parent,
        command: family.Command,
        now: datetime,
    ) -> StoredBuild:
        """Apply one command to a parent, then to those of its children that end with it."""
        changed, effects = family.decide(parent, command, now=now)
        after = replace(stored, build=changed)
        if changed.state in machine.FINAL and parent.state not in machine.FINAL:
            after = joined(ledger, after, self.host, now)
        if changed != parent:
            ledger.save_build(after)
        for effect in effects:
            match effect:
                case family.EndChild(child_id, wish):
                    self._end_child(ledger, child_id, wish, now)
                case machine.Finished():
                    self._end(ledger, after)
                case _:
                    assert_never(effect)
        return ledger.build(stored.id) or after  # the children's ends may have been its own

    def _end_child(
        self, ledger: Ledger, child_id: str, wish: machine.CancelWish, now: datetime
    ) -> None:
        child = ledger.build(child_id)
        assert child is not None
        # A sibling that ended before may have ended it.
        if child.build.state not in machine.FINAL:
            self.apply(ledger, child, machine.Cancel(wish.by, wish.reason), now)

    def record(
        self, ledger: Ledger, stored: StoredBuild, event: wire.Event, *, at: int | None = None
    ) -> None:
        """Keep an event, with how far the log was when it happened; none: as far as it is now."""
        fence = stored.build.fence
        if at is None:
            at = self.logs.size(stored.id, fence) if fence else 0
        ledger.add_event(
            stored.id,
            fence=fence,
            log_size=at,
            kind=str(event.__struct_config__.tag),
            payload=msgspec.json.encode(event),
        )

    def _follow(
        self, ledger: Ledger, stored: StoredBuild, effect: machine.Effect, now: datetime
    ) -> StoredBuild:
        match effect:
            case machine.Granted(lease):
                return self._granted(ledger, stored, lease, now)
            case machine.PhaseEntered(phase):
                self.record(ledger, stored, wire.PhaseChanged(cursor="", phase=phase))
            case machine.CancelAsked(wish):
                event = wire.CancelRequested(cursor="", by=wish.by, reason=wish.reason)
                self.record(ledger, stored, event)
            case machine.Requeued(fence, reason, since):
                self.record(ledger, stored, wire.Requeued(cursor="", attempt=fence, reason=reason))
                ledger.give_turn_back(stored.submit.project)
                ledger.forget(stored.submit.project, attempt_name(stored.id, fence))
                anew = replace(stored, here_reason=None, queued_since=now, log_prefix=0)
                return replace(anew, idle_since=since if since < now else None)
            case machine.Silenced(runner, session):
                _silence(ledger, runner, session, now)
            case machine.Finished(state, cause):
                return self._finished(ledger, stored, state, cause)
        return stored

    def _granted(
        self, ledger: Ledger, stored: StoredBuild, lease: machine.Lease, now: datetime
    ) -> StoredBuild:
        runner = ledger.runner(lease.runner)
        able = runner.capabilities if runner else None
        here = runner is not None and runner.here
        prefix = b""
        if here:
            why = f" instead of on a runner: {stored.here_reason}" if stored.here_reason else ALONE
            allowed = size(able.memory_bytes) if able else "little"
            prefix = NOTE.format(why, allowed).encode()
        elif stored.build.broken_why and lease.runner not in stored.build.broken_on:
            names = " and ".join(sorted({*stored.build.broken_on}))
            prefix = MOVED.format(lease.runner, names, stored.build.broken_why).encode()
        event = wire.Started(
            cursor="",
            runner=lease.runner,
            here=here,
            attempt=stored.build.attempts,
            fence=lease.fence,
            platforms=able.platforms if able else (),
            cpus=able.cpus if able else 0,
            memory_bytes=able.memory_bytes if able else 0,
            total_memory_bytes=able.total_memory_bytes if able else 0,
            note_bytes=len(prefix),
        )
        self.record(ledger, stored, event)
        if here and stored.here_reason:
            self.record(ledger, stored, wire.FellBack(cursor="", reason=stored.here_reason))
        if prefix:
            # Started has the log's size before the note, so that readers get the note as log.
            self.logs.begin(stored.id, lease.fence, prefix)
        ledger.take_turn(stored.submit.project)
        return replace(
            stored,
            started_at=stored.started_at or now,
            granted_at=now,
            last_runner=lease.runner,
            last_request=lease.request_id,
            log_prefix=len(prefix),
        )

    def _finished(
        self,
        ledger: Ledger,
        stored: StoredBuild,
        state: machine.State,
        cause: machine.LostCause | machine.GiveUpCause | None,
    ) -> StoredBuild:
        """Settle what the attempts pushed; say why, when no runner did."""
        project, fence = stored.submit.project, stored.build.fence
        waits_for_siblings = stored.parent is not None and state is machine.State.SUCCEEDED
        if fence and state is machine.State.SUCCEEDED and not waits_for_siblings:
            ledger.publish(project, attempt_name(stored.id, fence))
            digest = stored.envelope.manifest_digest if stored.envelope else None
            assert digest is not None
            for tag in stored.submit.tags:
                ledger.set_tag(project, tag, digest)
        elif fence and not waits_for_siblings:
            ledger.forget(project, attempt_name(stored.id, fence))
        if stored.envelope is not None or cause is None:
            return stored
        message = {
            "runners-lost": f"every attempt lost its runner ({stored.build.attempts} tries)",
            "runner": f"its runner broke {len(stored.build.broken_on)} times while it built this",
            "no-runner": "no runner can take it",
            "waited-too-long": "no runner became free in time",
        }[cause]
        failure = Failure(cause=cause, message=message, detail=what_broke(stored))
        return replace(stored, envelope=Envelope(outcome="failed", failure=failure))


def _silence(ledger: Ledger, runner: str, session: str, now: datetime) -> None:
    """Note that a session lost an attempt by saying nothing: what it said before counts no more."""
    known = ledger.runner(runner)
    if known is not None and known.session is not None and known.session.id == session:
        ledger.save_runner(replace(known, session=replace(known.session, silent_at=now)))


def what_broke(stored: StoredBuild) -> str | None:
    """Return what the last runner that broke over a build said of itself."""
    broken_on, why = stored.build.broken_on, stored.build.broken_why
    return f"{broken_on[-1]}: {why}"[:1000] if why else None


def as_it_is(ledger: Ledger, stored: StoredBuild) -> StoredBuild:
    """Return a build that was listed before others were changed: a sibling may have ended it."""
    return stored if stored.parent is None else ledger.build(stored.id) or stored


def announce(bells: Bells, *changed: StoredBuild) -> None:
    """Wake whoever these builds, just stored, concern."""
    for stored in changed:
        bells.changed(stored.id)
        queued = stored.build.state is machine.State.QUEUED
        if queued and not isinstance(stored.build, family.Parent):
            bells.offer(wanted_of(stored))
        if stored.last_runner is not None:
            bells.wake_runner(stored.last_runner)
