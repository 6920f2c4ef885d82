"""What the owner has to know of a control plane's certificates, in time, with what to type.

What goes on by itself is told as well, and marked: it needs nobody unless it gets stuck.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pierhead.router.domain.authority import (
    Announced,
    Authority,
    Machine,
    Root,
    Switched,
    awaited,
    newest,
    unknowing,
)

# Half a year: machines that are switched on now and then have to learn of another root as well.
ROOT_TOLD_BEFORE: Final = timedelta(days=183)
# A certificate is made anew when a third of its life is left; with a fifth, that has gone wrong.
CERTIFICATE_TOLD_AT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One thing. `remedy`: what to type; `needs_you`: somebody has to."""

    what: str
    text: str
    remedy: str
    needs_you: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A certificate that handshakes show. `remedy`: where it is said why it is not made anew."""

    name: str
    made_at: datetime | None  # none: it is not there
    ends_at: datetime | None
    remedy: str


def concerns(
    authority: Authority | None, machines: Sequence[Machine], shown: Iterable[Shown], now: datetime
) -> tuple[Concern, ...]:
    """Return what there is to know; what needs somebody comes first."""
    found = list(_of_certificates(shown, now))
    if authority is not None:
        found += [*_of_root(newest(authority), now), *_of_change(authority, machines)]
    return tuple(sorted(found, key=lambda one: not one.needs_you))


def _of_root(root: Root, now: datetime) -> Iterator[Concern]:
    if now >= root.ends_at - ROOT_TOLD_BEFORE:
        text = f"the certificate authority {_ends(root.ends_at, now)}; then nobody believes it"
        yield Concern(what="authority", text=text, remedy="pierhead ca rotate")


def _of_change(authority: Authority, machines: Sequence[Machine]) -> Iterator[Concern]:
    match authority:
        case Announced(until=until):
            goes_on = f"another one signs from {_at(until)} on, at the latest"
        case Switched(until=until):
            goes_on = f"the old one is believed until {_at(until)}"
        case _:
            return
    names = unknowing(authority, machines)
    missing = f"; not yet known to {', '.join(names)}" if names else ""
    yield Concern(
        what="authority",
        text=f"the certificate authority is being changed: {goes_on}{missing}",
        remedy="pierhead ca",
        # Before, whoever works has time to learn of it; after that it is left behind.
        needs_you=isinstance(authority, Switched) and bool(awaited(authority, machines)),
    )


def _of_certificates(shown: Iterable[Shown], now: datetime) -> Iterator[Concern]:
    for one in shown:
        if one.made_at is None or one.ends_at is None:
            text = f"there is no certificate for {one.name} yet"
        elif now >= one.ends_at - (one.ends_at - one.made_at) / CERTIFICATE_TOLD_AT:
            text = f"the certificate of {one.name} {_ends(one.ends_at, now)}, and is not made anew"
        else:
            continue
        yield Concern(what="certificate", text=text, remedy=one.remedy)


def _ends(at: datetime, now: datetime) -> str:
    if now >= at:
        return f"ended on {at:%Y-%m-%d}"
    days = (at - now).days
    return f"ends on {at:%Y-%m-%d}, in {days} day{'' if days == 1 else 's'}"


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
