"""A build as its submitter sees it: the view, why it waits, and the events of its life."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.ids import BuildId, ProjectName, ReplayKey
from pierhead.protocol.lease import Phase
from pierhead.protocol.plan import PLATFORMS_MAX, QUEUE_WAIT_SECONDS_MAX, IfNobody, Plan
from pierhead.protocol.platform import PlatformText
from pierhead.protocol.result import Envelope

StateName: TypeAlias = Literal["queued", "leased", "succeeded", "failed", "cancelled"]
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


class ChildBuild(Struct, frozen=True, kw_only=True):
    """One platform's build of a build for several."""

    id: BuildId
    platform: PlatformText
    state: StateName


class BuildView(Struct, frozen=True, kw_only=True):
    """One build. Times are RFC 3339 in UTC."""

    id: BuildId
    project: str
    environment: str = "production"
    state: StateName
    created_at: str
    tags: tuple[str, ...] = ()
    phase: Phase | None = None
    step: str | None = None  # of a build that runs: "3/9 RUN pnpm build"
    position: int | None = None  # in the queue, from 1
    # Of a build that waits: until it is likely to begin, by what builds take; none: not known.
    expected_wait_seconds: int | None = None
    waits_for: str | None = None  # "desktop is busy"
    runner: str | None = None  # that has it, or had it last
    attempts: int = 0
    fence: int = 0
    cancel_requested: bool = False
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    submitted_by: str = ""  # "the owner", "project web"
    supersedes: str | None = None  # the group whose older builds ended with this one's submission
    started_at: str | None = None
    finished_at: str | None = None
    reference: str | None = None  # by digest; of succeeded builds
    result: Envelope | None = None
    why_here: str | None = None  # why the control plane's own machine builds it
    log_bytes: int = 0
    log_complete: bool | None = None  # of final builds: what came equals what the runner sent
    plan: Plan | None = None
    parent: BuildId | None = None  # of a build for one of several platforms; it has no reference
    children: tuple[ChildBuild, ...] = ()  # of a build for several platforms


class BuildPage(Struct, frozen=True, kw_only=True):
    """A page of builds, newest first."""

    builds: tuple[BuildView, ...]
    next: str | None = None


class Rejection(Struct, frozen=True, kw_only=True):
    """One runner and why it does not take the build."""

    runner: str
    reason: str


class WhyRequest(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/builds:why`: who would take such a build. Nothing is queued."""

    project: ProjectName
    platform: PlatformText | None = None
    platforms: Annotated[tuple[PlatformText, ...], Meta(max_length=PLATFORMS_MAX)] = ()
    network: Literal["default", "none"] = "default"
    if_nobody: IfNobody = "here"
    max_queue_wait_seconds: Annotated[int, Meta(ge=0, le=QUEUE_WAIT_SECONDS_MAX)] = 300


class PlatformWhy(Struct, frozen=True, kw_only=True):
    """Who builds one of several platforms, and what happens next."""

    platform: PlatformText
    build: BuildId | None = None  # none: nothing was queued
    wants: str
    rejections: tuple[Rejection, ...]
    eligible: tuple[str, ...]
    verdict: str
    position: int | None = None  # in the queue, from 1
    expected_wait_seconds: int | None = None
    may_run_here: bool = False


class Why(Struct, frozen=True, kw_only=True):
    """Answer to `GET /api/builds/{id}/why` and to `POST /api/builds:why`.

    Of several platforms, `platforms` tells each; `eligible` are then those that take any of them,
    and nobody stands among the rejections.
    """

    wants: str  # "linux/amd64, network"
    rejections: tuple[Rejection, ...]
    eligible: tuple[str, ...]
    verdict: str  # "waits for desktop (until 16:42), then fails"
    platforms: tuple[PlatformWhy, ...] = ()
    position: int | None = None  # of a build in the queue, from 1
    expected_wait_seconds: int | None = None  # until it is likely to begin; none: not known
    may_run_here: bool = False  # it waits for others, and this machine would take it if asked to


class CancelRequest(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/builds/{id}/cancel`."""

    reason: str = "asked for"


class Rerun(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/builds/{id}/rerun`: the same build again. The same `key` is one build."""

    key: ReplayKey


# The events of a build, a closed union. `cursor` is where to resume: give it back as
# `Last-Event-ID` and nothing comes twice and nothing is missed. The stream of a build for several
# platforms has those of its children in it, each event with its `platform`; the log of each
# platform has offsets of its own.


class Queued(Struct, frozen=True, kw_only=True, tag="queued", tag_field="event"):
    """The build waits. How it looks for it is told to those who read this while it does."""

    cursor: str
    position: int | None = None
    expected_wait_seconds: int | None = None
    rejections: tuple[Rejection, ...] = ()
    platform: PlatformText | None = None


class Started(Struct, frozen=True, kw_only=True, tag="started", tag_field="event"):
    """A runner has the build."""

    cursor: str
    runner: str
    here: bool
    attempt: int
    fence: int
    platforms: tuple[str, ...] = ()
    cpus: int = 0
    memory_bytes: int = 0  # that builds may use there
    total_memory_bytes: int = 0
    # So much of the log, from its beginning, is the control plane's own: why it is built here.
    note_bytes: int = 0
    platform: PlatformText | None = None


class PhaseChanged(Struct, frozen=True, kw_only=True, tag="phase", tag_field="event"):
    """The runner went on to another phase."""

    cursor: str
    phase: Phase
    platform: PlatformText | None = None


class Step(Struct, frozen=True, kw_only=True, tag="step", tag_field="event"):
    """A step of the Dockerfile began or ended: "3/9 RUN pnpm build"."""

    cursor: str
    name: str
    state: Literal["started", "cached", "done", "failed"]
    at: str  # RFC 3339
    took_ms: int | None = None  # of steps that ended
    ran_ms: int | None = None  # of one that runs: for how long, when this was sent
    platform: PlatformText | None = None


class Log(Struct, frozen=True, kw_only=True, tag="log", tag_field="event"):
    """Bytes of the log, from `offset` on. `data` is base64 on the wire: logs are not text."""

    cursor: str
    offset: int
    data: bytes
    platform: PlatformText | None = None


class Requeued(Struct, frozen=True, kw_only=True, tag="requeued", tag_field="event"):
    """The attempt ended without a result; the build waits again. Its log starts anew."""

    cursor: str
    attempt: int
    reason: str
    platform: PlatformText | None = None


class FellBack(Struct, frozen=True, kw_only=True, tag="fell-back", tag_field="event"):
    """The control plane's own machine builds it, and why."""

    cursor: str
    reason: str
    platform: PlatformText | None = None


class Notice(Struct, frozen=True, kw_only=True, tag="notice", tag_field="event"):
    """Something the submitter should know."""

    cursor: str
    text: str
    hint: str | None = None
    platform: PlatformText | None = None


class CancelRequested(Struct, frozen=True, kw_only=True, tag="cancel-requested", tag_field="event"):
    """Somebody asked to cancel the build; its runner is stopping it."""

    cursor: str
    by: str
    reason: str
    platform: PlatformText | None = None


class Finished(Struct, frozen=True, kw_only=True, tag="finished", tag_field="event"):
    """The build has its result. Nothing follows."""

    cursor: str
    build: BuildView


Event: TypeAlias = (
    Queued
    | Started
    | PhaseChanged
    | Step
    | Log
    | Requeued
    | FellBack
    | Notice
    | CancelRequested
    | Finished
)
