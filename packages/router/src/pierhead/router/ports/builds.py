"""Builds, their events and their secrets, as they are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from pierhead.protocol.plan import Submit
from pierhead.protocol.result import Envelope
from pierhead.router.domain.build import Build
from pierhead.router.domain.turns import InLine


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBuild:
    """A build with what is kept beside the machine's state."""

    build: Build
    sequence: int  # rises with each submission
    submit: Submit
    trusted: bool
    created_at: datetime
    queued_since: datetime
    idle_since: datetime | None = None  # its runner fell silent: nobody worked on it since then
    here_reason: str | None = None  # not none: here may take it, and why
    started_at: datetime | None = None  # by its first runner
    granted_at: datetime | None = None  # to the last one
    last_runner: str | None = None
    last_request: str | None = None  # request id of the last grant; derives its token
    envelope: Envelope | None = None
    reference: str | None = None  # of a child none: its image is seen with its parent's
    log_prefix: int = 0  # bytes of the current attempt's log that are the router's own
    log_complete: bool | None = None
    secrets_mac: str | None = None  # of the values, which are kept elsewhere and only until the end
    submitted_by: str = ""
    preview: bool = False  # its environment was one when it was submitted
    peak_bytes: int | None = None  # memory that the project's build before it took
    parent: str | None = None  # of a build for one of several platforms

    @property
    def id(self) -> str:
        """The build's id."""
        return self.build.id


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """One event of a build. `log_size`: how long its attempt's log was when it happened."""

    sequence: int
    fence: int
    log_size: int
    kind: str
    payload: bytes  # the event's JSON, without its cursor


class LiveAttempt(NamedTuple):
    """An attempt that a runner has now, and no more of its build than that."""

    project: str
    build_id: str
    fence: int
    runner: str


class Builds(Protocol):
    """The part of a transaction that builds see."""

    def build(self, build_id: str) -> StoredBuild | None:
        """Return one build."""
        ...

    def build_by_key(self, project: str, key: str) -> StoredBuild | None:
        """Return the build that was submitted with a key."""
        ...

    def open_in_group(self, project: str, group: str) -> Sequence[StoredBuild]:
        """Return the builds of a group that have not ended, oldest first."""
        ...

    def builds_with_prefix(
        self, prefix: str, project: str | None, environment: str | None = None
    ) -> Sequence[StoredBuild]:
        """Return at most two builds whose id begins so; `@`: the latest.

        The children of one come only when the prefix is their parent's whole id and more.
        """
        ...

    def builds_page(
        self,
        project: str | None,
        limit: int,
        before: int | None,
        *,
        by: str | None = None,
        environment: str | None = None,
        children: bool = False,
    ) -> Sequence[StoredBuild]:
        """Return builds, newest first; `children`: with those for one of several platforms."""
        ...

    def add_build(self, stored: StoredBuild) -> StoredBuild:
        """Add a build and return it with its sequence."""
        ...

    def save_build(self, stored: StoredBuild) -> None:
        """Store a build that was changed."""
        ...

    def add_secrets(self, build_id: str, locked: Mapping[str, bytes]) -> None:
        """Keep the secrets of a build, as the vault locked them."""
        ...

    def secrets(self, build_id: str) -> Mapping[str, bytes]:
        """Return the locked secrets of a build; none are left when it has ended."""
        ...

    def forget_secrets(self, build_id: str) -> None:
        """Delete the secrets of a build."""
        ...

    def ended_before(self, before: datetime, limit: int) -> Sequence[StoredBuild]:
        """Return builds that ended before a time, oldest first; children go with their parent."""
        ...

    def delete_build(self, build_id: str) -> None:
        """Forget a build and its events."""
        ...

    def is_named(self, project: str, digest: str) -> bool:
        """Say whether a tag, another manifest or a build names a manifest."""
        ...

    def queued(
        self, after: int = 0, limit: int = 1000, *, project: str | None = None
    ) -> Sequence[StoredBuild]:
        """Return builds that wait for a runner, of a project or of all, oldest first.

        Never a parent. `after`: only those of a higher sequence.
        """
        ...

    def queue_length(self, project: str | None = None) -> int:
        """Return how many builds wait for a runner, of a project or of all."""
        ...

    def line(self) -> Sequence[InLine]:
        """Return all that waits for a runner, without the builds: quick."""
        ...

    def durations(self, project: str | None) -> Sequence[timedelta]:
        """Return how long runners had builds that succeeded, newest first, of a project or of all.

        At most `DURATIONS_MAX`, of the newest few dozen builds; a parent is none of them.
        """
        ...

    def leased(
        self,
        *,
        runner: str | None = None,
        session: str | None = None,
        until: datetime | None = None,
    ) -> Sequence[StoredBuild]:
        """Return builds that a runner has, oldest first: never a parent.

        Only those of one runner, or of one session of it, or whose leases end by a time.
        """
        ...

    def live_attempts(self) -> Sequence[LiveAttempt]:
        """Return the attempts that runners have now, without their builds: quick."""
        ...

    def add_event(
        self, build_id: str, *, fence: int, log_size: int, kind: str, payload: bytes
    ) -> None:
        """Add an event after all others of its build."""
        ...

    def events(self, build_id: str, after: int) -> Sequence[StoredEvent]:
        """Return the events of a build after one."""
        ...
