"""The certificate authority of a control plane, and how it is changed for another one."""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.ids import Pin, RunnerName

# Each of the two phases takes so long, at most: as long as a join code is good, to 90 days. A week
# is time for machines that are away over a weekend, and for people who log in now and then.
AFTER_SECONDS: Final = 7 * 86_400
AFTER_SECONDS_MIN: Final = 15 * 60
AFTER_SECONDS_MAX: Final = 90 * 86_400

# `announced`: the coming authority is being learned. `switched`: it signs, and the one that leaves
# is believed still.
Turn: TypeAlias = Literal["steady", "announced", "switched"]


class RootView(Struct, frozen=True, kw_only=True):
    """One authority."""

    fingerprint: Pin
    since: str  # RFC 3339, as the next
    until: str


class AuthorityView(Struct, frozen=True, kw_only=True):
    """Answer to `GET /api/ca`, and to what changes it."""

    turn: Turn
    root: RootView  # signs what is shown in a handshake
    coming: RootView | None = None
    leaving: RootView | None = None
    next_at: str | None = None  # RFC 3339: when it goes on by itself, at the latest
    knowing: tuple[RunnerName, ...] = ()  # runners that know the authority that stays
    unknowing: tuple[RunnerName, ...] = ()
    awaited: tuple[RunnerName, ...] = ()  # of the latter: not stopped


class Rotate(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/ca/rotation`: change the authority while everything goes on."""

    after_seconds: Annotated[int, Meta(ge=AFTER_SECONDS_MIN, le=AFTER_SECONDS_MAX)] = AFTER_SECONDS


class Replace(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/ca/replacement`: nobody is believed any more by what there was."""

    fingerprint: Pin  # of the authority that there is, so that nobody replaces another one


class Replaced(Struct, frozen=True, kw_only=True):
    """Answer to a replacement. The runners, and whoever has a code, have to join again."""

    old_fingerprint: Pin
    new_fingerprint: Pin
    codes: int  # that could still have been used
    runners: tuple[RunnerName, ...]
