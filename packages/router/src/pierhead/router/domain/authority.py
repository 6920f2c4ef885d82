"""The control plane's certificate authority, and how it is changed for another one.

    STEADY ──begin──▶ ANNOUNCED ──switch──▶ SWITCHED ──retire──▶ STEADY
      ▲                   │                                        ▲
      └──────cancel───────┘            replace, from any of them ──┘

Announced: the old root signs what is shown, and whoever is connected by it hears of the new one.
Switched: the new one signs; the old one has no key any more, and is still believed. In both, the
one that signs is vouched for by the other, so that either is enough to be let through.

Replacing is for a root that somebody else may have: from then on nobody is believed by it.

What is not here: keys, files, and what a handshake shows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from pierhead.router.domain.enrollment import LIFETIME
from pierhead.router.domain.errors import RotationConflict, StaleFingerprint

# Who joins by a code that was made just before a rotation began has as long as the code says.
ANNOUNCED_AT_LEAST: Final = LIFETIME


@dataclass(frozen=True, slots=True)
class Root:
    """A root certificate, known by its fingerprint."""

    pin: str
    made_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True)
class Steady:
    """One root, and no other."""

    root: Root


@dataclass(frozen=True, slots=True)
class Announced:
    """The root signs; the coming one is being learned."""

    root: Root
    coming: Root
    since: datetime
    after: timedelta  # the longest that this phase lasts, and how long the next one does

    @property
    def until(self) -> datetime:
        """When the coming root signs at the latest."""
        return self.since + self.after


@dataclass(frozen=True, slots=True)
class Switched:
    """The root signs; the leaving one is believed still, and can sign nothing any more."""

    root: Root
    leaving: Root
    since: datetime
    after: timedelta

    @property
    def until(self) -> datetime:
        """When the leaving root is believed no more."""
        return self.since + self.after


Authority: TypeAlias = Steady | Announced | Switched


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a runner said of whom it believes. `pins` none: it never said so."""

    name: str
    pins: tuple[str, ...] | None
    stopped: bool

    def believes(self, root: Root) -> bool:
        """Say whether the runner is let through by a root; one that needs none says so."""
        return self.pins is not None and (not self.pins or root.pin in self.pins)


def begin(authority: Authority, coming: Root, after: timedelta, now: datetime) -> Announced:
    """Announce another root.

    Raises:
        RotationConflict: one is announced already, or left a short while ago.
    """
    if not isinstance(authority, Steady):
        hint = "pierhead ca says how far it is; pierhead ca rotate --finish goes on at once"
        raise RotationConflict("the authority is being changed already", hint=hint)
    return Announced(authority.root, coming, now, after)


def cancel(authority: Authority) -> Steady:
    """Take the announcement back.

    Raises:
        RotationConflict: there is none, or the new root signs already.
    """
    match authority:
        case Announced(root=root):
            return Steady(root)
        case Switched():
            hint = "begin another change when this one is over: pierhead ca rotate --finish"
            raise RotationConflict("the new authority is in use already", hint=hint)
        case Steady():
            raise RotationConflict("the authority is not being changed", hint="see: pierhead ca")


def advance(authority: Authority, now: datetime) -> Switched | Steady:
    """Go on to the next phase.

    Raises:
        RotationConflict: there is none.
    """
    match authority:
        case Announced(root=root, coming=coming, after=after):
            return Switched(coming, root, now, after)
        case Switched(root=root):
            return Steady(root)
        case Steady():
            hint = "begin: pierhead ca rotate"
            raise RotationConflict("the authority is not being changed", hint=hint)


def is_due(authority: Authority, machines: Iterable[Machine], now: datetime) -> bool:
    """Say whether the next phase begins by itself, now."""
    match authority:
        case Announced(since=since):
            known = now >= since + ANNOUNCED_AT_LEAST and not awaited(authority, machines)
            return known or now >= authority.until
        case Switched():
            return now >= authority.until
        case Steady():
            return False


def check_confirmed(authority: Authority, said: str) -> None:
    """Let whoever replaces the authority pass if they know which one.

    Raises:
        StaleFingerprint: it is another one by now, or was never this.
    """
    if said != authority.root.pin:
        raise StaleFingerprint("the authority has another fingerprint than the one that was named")


def believed(authority: Authority) -> tuple[Root, ...]:
    """Return whom others are to believe, from now on."""
    match authority:
        case Announced(root=root, coming=other) | Switched(root=root, leaving=other):
            return root, other
        case Steady(root=root):
            return (root,)


def newest(authority: Authority) -> Root:
    """Return the root that stays: the one in join codes, which all have to know in the end."""
    return authority.coming if isinstance(authority, Announced) else authority.root


def unknowing(authority: Authority, machines: Iterable[Machine]) -> tuple[str, ...]:
    """Return the names of the runners that have not learned the root that stays."""
    return tuple(machine.name for machine in machines if not machine.believes(newest(authority)))


def awaited(authority: Authority, machines: Iterable[Machine]) -> tuple[str, ...]:
    """Return for whom the switch waits: one that was stopped learns nothing."""
    return unknowing(authority, (machine for machine in machines if not machine.stopped))
