"""What is told of a build while it runs: a closed union, in order, the same for every reader.

`cursor` is where to go on: give it to `Build.events(after=)`, and nothing is missed and nothing
comes twice. A kind that is added later is sent only to clients that ask for it.

Of a build for several platforms, `platform` says whose event it is: each has a runner, attempts and
a log of its own, with offsets of its own. Without one, an event is of the whole build.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NewType, TypeAlias

from pierhead.router.outcome import Outcome, Rejection

Cursor = NewType("Cursor", str)
START = Cursor("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The build waits."""

    position: int | None = None  # from 1; none: not known yet
    expected_wait: timedelta | None = None
    rejected: tuple[Rejection, ...] = ()
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A runner has the build. Its log begins anew."""

    runner: str
    executor: Literal["runners", "here", "local"]
    attempt: int
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the Dockerfile: "3/9 RUN pnpm build"."""

    name: str
    state: Literal["started", "cached", "done", "failed"]
    took: timedelta | None = None  # of steps that ended
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Bytes of the log. Store them at `offset`, and nothing is doubled however often it comes."""

    data: bytes
    offset: int  # of data[0], in bytes from the log's beginning
    stream: Literal["stdout", "stderr"] = "stdout"
    step: str | None = None
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a phase is that moves bytes."""

    phase: Literal["pack", "upload", "push", "extract", "scan"]
    done_bytes: int
    total_bytes: int | None  # none: not known
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """The attempt ended without a result; the build waits again."""

    attempt: int
    reason: str
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack:
    """It is built somewhere else than wished. `to`: "here" (the control plane) or "local"."""

    reason: str
    to: Literal["here", "local"]
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that people should know."""

    slug: str
    text: str
    hint: str | None = None
    platform: str | None = None
    cursor: Cursor = START


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How it ended. Nothing follows."""

    outcome: Outcome
    cursor: Cursor = START


Event: TypeAlias = (
    Queued | Started | Step | Log | Progress | Requeued | FellBack | Notice | Finished
)
OnEvent: TypeAlias = Callable[[Event], Awaitable[None] | None]
