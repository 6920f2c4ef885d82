"""One process of a runner at work, and what it really holds.

A runner says with each acquire what it works on. What the router believes beyond that is lost and
goes back to the queue at once; what the runner believes beyond that it must drop. A grant whose
answer was lost is neither: its request comes again, and gets the same grant.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pierhead.protocol.lease import Held
from pierhead.router.domain.build import Lease
from pierhead.router.domain.errors import SessionSuperseded


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session as stored."""

    id: str
    runner: str
    process: str  # random for each start of the runner
    boot_id: str
    started_ms: int = 0  # since the boot
    seen_at: datetime
    turn: int = 0  # the highest turn of an acquire that was heard
    public_key: bytes | None = None  # what secrets are sealed to; none: it gets none
    ended: bool = False  # its process said so
    silent_at: datetime | None = None  # it lost an attempt by saying nothing, noticed then


def admit(
    current: Session | None,
    process: str,
    boot_id: str,
    started_ms: int = 0,
    *,
    now: datetime,
    silence: timedelta,
) -> bool:
    """Say whether a process that opens a session needs a new one; false: it has it already.

    A new process on the same machine takes over at once: the state directory's lock proves that the
    old one is gone. One that began earlier than it is a request that was stuck on its way, unless
    nobody is at work: then the machine was set back to a snapshot, and its clock with it. From
    another machine it is a copy of the credential, and has to wait until the first has been silent
    for `silence`, or has said that it ends.

    Raises:
        SessionSuperseded: the runner is alive on another machine, or a later process took over.
    """
    if current is None:
        return True
    if current.process == process:
        return False
    silent = current.ended or now >= current.seen_at + silence
    if current.boot_id != boot_id and not silent:
        hint = "a credential is for one machine: join this one with a code of its own"
        raise SessionSuperseded(f"{current.runner} is at work on another machine", hint=hint)
    if current.boot_id == boot_id and started_ms < current.started_ms and not silent:
        hint = f"stop that one, or wait: it has to be silent for {silence.total_seconds():.0f} s"
        raise SessionSuperseded(f"a later process of {current.runner} is at work", hint=hint)
    return True


def check_copy(known: str | None, said: str, runner: str) -> None:
    """Let a runner pass whose state is where it was when it joined; `known` none: not yet seen.

    The lock of a state folder keeps a second process of one folder away, and nobody from a copy of
    the folder, which has the credential, too.

    Raises:
        SessionSuperseded: it is a copy.
    """
    if known is not None and known != said:
        hint = "join this machine with a code of its own: pierhead add NAME --builds"
        raise SessionSuperseded(f"this is a copy of the state of {runner}, not {runner}", hint=hint)


def is_alive(session: Session, *, now: datetime, silence: timedelta) -> bool:
    """Say whether a session's process is believed to be at work.

    An idle process is silent for as long as its request is held; one that holds a lease is not. So
    whoever lost one by silence is gone until it asks again, however short ago it asked the last
    time: it may still be waited for by a request with nobody behind it.
    """
    if session.ended or now >= session.seen_at + silence:
        return False
    return session.silent_at is None or session.silent_at < session.seen_at


def is_overtaken(session: Session, turn: int) -> bool:
    """Say whether a later acquire was heard already: what this one says it holds is not true now.

    A copy that was stuck on its way would take back what the runner was granted since.
    """
    return turn < session.turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What an acquire's `held` list says against what the router believes."""

    lost: tuple[str, ...]  # builds that the runner does not have: take them back
    drop: tuple[Held, ...]  # attempts that the runner works on in vain
    granted: tuple[str, ...]  # builds that this very request was granted before


def reconcile(
    leases: Iterable[tuple[str, Lease]], held: Iterable[Held], request_id: str
) -> Reconciled:
    """Compare the leases of a session, by build id, with what its runner says it holds."""
    believed = sorted(leases, key=lambda pair: pair[0])
    said = {(one.build_id, one.fence) for one in held}
    ours = {(build_id, lease.fence) for build_id, lease in believed}
    absent = [
        (build_id, lease) for build_id, lease in believed if (build_id, lease.fence) not in said
    ]
    return Reconciled(
        lost=tuple(build_id for build_id, lease in absent if lease.request_id != request_id),
        drop=tuple(Held(build_id=build_id, fence=fence) for build_id, fence in sorted(said - ours)),
        granted=tuple(build_id for build_id, lease in absent if lease.request_id == request_id),
    )
