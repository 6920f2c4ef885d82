"""How a runner takes builds, shows that it lives, and lets go. protocol rules P1-P8 of the design.

Every call here can be sent again: the answer to a repeat is the answer to the first.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.ids import Count, Fence, Pin, ProjectName, ReplayKey, ShortText
from pierhead.protocol.plan import ContextRef, Plan

Phase: TypeAlias = Literal["fetching", "building", "extracting", "scanning", "pushing", "reporting"]
ReleaseReason: TypeAlias = Literal["draining", "unhealthy", "unknown-build"]

HOLD_MS_MAX = 25_000


class Held(Struct, frozen=True, kw_only=True):
    """One attempt that a runner works on."""

    build_id: ShortText
    fence: Fence


class Acquire(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/runners/acquire`, repeated with the same `request_id` until answered.

    `held` is all that the process really works on: what the router believes it holds and is not
    in the list is taken back at once.
    """

    session_id: ShortText
    request_id: ReplayKey
    turn: Count  # rises with each new request of a session: one that was overtaken is told apart
    slots: Annotated[int, Meta(ge=0, le=256)]
    held: Annotated[tuple[Held, ...], Meta(max_length=256)] = ()
    hold_ms: Annotated[int, Meta(ge=0, le=HOLD_MS_MAX)] = HOLD_MS_MAX
    reason: ShortText | None = None  # why slots is 0: "draining", "free disk 0.4 GB"
    # By whom the router is believed to be itself, as stored by the runner; none: it does not say
    # so. Empty: not by an authority of the router's own.
    authorities: Annotated[tuple[Pin, ...], Meta(max_length=8)] | None = None


class Grant(Struct, frozen=True, kw_only=True):
    """A build, to be worked on as long as its lease is renewed."""

    build_id: ShortText
    fence: Fence
    token: ShortText  # for this build and fence only
    project: ProjectName
    plan: Plan
    context: ContextRef
    repository: ShortText  # where to push, by digest: path of the router's registry
    preview: bool = False  # it gets less trust: nothing it leaves may reach other builds' caches
    mirror: bool = False  # the router's registry also gives images of others: `ns=HOST`
    lease_ttl_ms: Count
    renew_in_ms: Count


class Acquired(Struct, frozen=True, kw_only=True):
    """Answer to an acquire. `drop` is to be killed: the lease is somebody else's or gone."""

    grants: tuple[Grant, ...] = ()
    drop: tuple[Held, ...] = ()
    retry_after_ms: Count = 0  # not 0: wait so long before the next acquire


class Sealed(Struct, frozen=True, kw_only=True):
    """Answer to `GET /api/builds/{id}/secrets`: the values, for one session and attempt only.

    `pierhead.protocol.sealing` says what is in the box and how it is opened.
    """

    public_key: Annotated[bytes, Meta(min_length=32, max_length=32)]  # X25519, made for this box
    box: Annotated[bytes, Meta(max_length=1024 * 1024)]


class Heartbeat(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/builds/{id}/heartbeat`."""

    phase: Phase | None = None


class Renewed(Struct, frozen=True, kw_only=True):
    """The lease is good for another `lease_ttl_ms`, counted from when the request was sent."""

    lease_ttl_ms: Count
    renew_in_ms: Count
    cancel_requested: bool = False


class Signals(Struct, frozen=True, kw_only=True):
    """Answer to `GET /api/builds/{id}/signals`, held until there is something to say."""

    cancel_requested: bool = False


class LogAccepted(Struct, frozen=True, kw_only=True):
    """Answer to `PATCH /api/builds/{id}/logs`: stored for good up to `next_offset` bytes."""

    next_offset: Count
    cancel_requested: bool = False


class Release(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/builds/{id}/release`: back to the queue, without counting an attempt."""

    reason: ReleaseReason
    detail: ShortText = ""
