"""The ledger in SQL. One method is one or two statements; no rule is decided here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa

from pierhead.protocol.plan import ContextRef, Submit
from pierhead.protocol.result import Envelope
from pierhead.protocol.runner import Capabilities
from pierhead.router.adapters.sql import tables as t
from pierhead.router.adapters.sql.images import SqlImages
from pierhead.router.adapters.sql.metadata import METADATA
from pierhead.router.adapters.sql.mirror import SqlMirror
from pierhead.router.adapters.sql.project_tables import projects
from pierhead.router.adapters.sql.projects import SqlProjects
from pierhead.router.adapters.sql.statements import SELECTOR_LENGTH, selector, upsert
from pierhead.router.domain.build import Build, CancelWish, Lease, State
from pierhead.router.domain.enrollment import Code
from pierhead.router.domain.forecast import DURATIONS_MAX
from pierhead.router.domain.naming import family_of
from pierhead.router.domain.parent import Child, Parent
from pierhead.router.domain.session import Session
from pierhead.router.domain.turns import InLine
from pierhead.router.ports.builds import LiveAttempt, StoredBuild, StoredEvent
from pierhead.router.ports.machines import StoredRunner
from pierhead.router.ports.store import Ledger
from pierhead.server.sql import Database

T = TypeVar("T")


# Statements of the path from a submit to its runner are made once: building one again costs more
# than running it.
_BUILD_BY_ID: Final = sa.select(t.builds).where(t.builds.c.id == sa.bindparam("build_id"))
_BUILD_BY_KEY: Final = sa.select(t.builds).where(
    t.builds.c.project == sa.bindparam("of"), t.builds.c.key == sa.bindparam("said")
)
_ADD_BUILD: Final = sa.insert(t.builds)
# The state is part of the text, so that the index over open builds fits it.
_IS_QUEUED, _IS_LEASED = (
    sa.and_(t.builds.c.state == sa.literal_column(f"'{state}'"), t.builds.c.children.is_(None))
    for state in (State.QUEUED, State.LEASED)
)
_QUEUED: Final = (
    sa.select(t.builds)
    .where(_IS_QUEUED, t.builds.c.sequence > sa.bindparam("after"))
    .order_by(t.builds.c.sequence)
    .limit(sa.bindparam("at_most"))
)
_LEASED: Final = sa.select(t.builds).where(_IS_LEASED).order_by(t.builds.c.sequence)
_LEASED_IN_SESSION: Final = _LEASED.where(t.builds.c.lease_session == sa.bindparam("session"))
_LIVE_ATTEMPTS: Final = sa.select(
    t.builds.c.project, t.builds.c.id, t.builds.c.fence, t.builds.c.last_runner
).where(_IS_LEASED)
_QUEUE_LENGTH: Final = sa.select(sa.func.count()).where(_IS_QUEUED)
_QUEUE_LENGTH_OF: Final = _QUEUE_LENGTH.where(t.builds.c.project == sa.bindparam("of"))
# The text makes SQLite take the index of what waits, not that of a project's whole history.
_QUEUED_OF: Final = _QUEUED.where(t.builds.c.project == sa.bindparam("of"))
_LINE: Final = (
    sa.select(t.builds.c.project, t.builds.c.sequence, sa.func.coalesce(projects.c.turn, 0))
    .select_from(t.builds.outerjoin(projects, projects.c.name == t.builds.c.project))
    .where(_IS_QUEUED)
)
_RUNNERS: Final = sa.select(t.runners).order_by(t.runners.c.name)
_RUNNER: Final = sa.select(t.runners).where(t.runners.c.name == sa.bindparam("called"))
_RUNNER_BY_HASH: Final = sa.select(t.runners).where(
    selector(t.runners.c.credential_hash) == sa.bindparam("part")
)
_CONTEXT: Final = sa.select(*(t.contexts.c[name] for name in ContextRef.__struct_fields__)).where(
    t.contexts.c.project == sa.bindparam("of"), t.contexts.c.digest == sa.bindparam("digest")
)
_PEAKS_LOOKED_AT: Final = 5
_LAST_ENVELOPES: Final = (
    sa.select(t.builds.c.envelope)
    .where(t.builds.c.project == sa.bindparam("of"), t.builds.c.envelope.is_not(None))
    .order_by(t.builds.c.sequence.desc())
    .limit(_PEAKS_LOOKED_AT)
)
# Builds that fail one after the other do not make a question after usual times a long one.
_DURATIONS_LOOKED_AT: Final = 50
_ALL: Final = 2**31
_SAVE_BUILD: Final = sa.update(t.builds).where(t.builds.c.id == sa.bindparam("saved_id"))
_ADD_EVENT: Final = sa.insert(t.events).values(
    build_id=sa.bindparam("of"),
    sequence=sa.select(sa.func.coalesce(sa.func.max(t.events.c.sequence), 0) + 1)
    .where(t.events.c.build_id == sa.bindparam("of"))
    .scalar_subquery(),
)
_EVENTS: Final = (
    sa.select(*(column for column in t.events.c if column.name != "build_id"))
    .where(t.events.c.build_id == sa.bindparam("of"), t.events.c.sequence > sa.bindparam("after"))
    .order_by(t.events.c.sequence)
)


class SqlStore:
    """The store on a SQLite file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, path: Path) -> "SqlStore":
        """Open the database, and make its tables when it is new.

        Raises:
            Unavailable: it cannot be used, or another release wrote it.
        """
        return cls(await Database.open(path, METADATA, t.SCHEMA_VERSION))

    async def write(self, operation: Callable[[Ledger], T]) -> T:
        """Run it in a transaction that is on the disk when this returns."""
        return await self._database.write(lambda connection: operation(SqlLedger(connection)))

    async def read(self, operation: Callable[[Ledger], T]) -> T:
        """Run it on the last committed state."""
        return await self._database.read(lambda connection: operation(SqlLedger(connection)))

    async def close(self) -> None:
        """Finish what waits, then close."""
        await self._database.close()


class SqlLedger(SqlImages, SqlMirror, SqlProjects):
    """One transaction."""

    # Builds.

    def build(self, build_id: str) -> StoredBuild | None:
        """Return one build."""
        row = self._sql.execute(_BUILD_BY_ID, {"build_id": build_id}).mappings().first()
        return _build(row) if row is not None else None

    def build_by_key(self, project: str, key: str) -> StoredBuild | None:
        """Return the build that was submitted with a key."""
        row = self._sql.execute(_BUILD_BY_KEY, {"of": project, "said": key}).mappings().first()
        return _build(row) if row is not None else None

    def open_in_group(self, project: str, group: str) -> Sequence[StoredBuild]:
        """Return the builds of a group that have not ended, oldest first."""
        query = sa.select(t.builds).where(
            t.builds.c.project == project,
            t.builds.c.supersedes == group,
            t.builds.c.finished_at.is_(None),
        )
        return self._builds(query.order_by(t.builds.c.sequence))

    def builds_with_prefix(
        self, prefix: str, project: str | None, environment: str | None = None
    ) -> Sequence[StoredBuild]:
        """Return at most two builds whose id begins so; `@`: the latest."""
        query = sa.select(t.builds).order_by(t.builds.c.sequence.desc())
        query = _within(query, project, environment)
        if prefix == family_of(prefix):
            query = query.where(t.builds.c.parent.is_(None))
        if prefix == "@":
            return self._builds(query.limit(1))
        return self._builds(query.where(t.builds.c.id.startswith(prefix, autoescape=True)).limit(2))

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
        """Return builds, newest first; `by`: only what they submitted."""
        query = sa.select(t.builds).order_by(t.builds.c.sequence.desc()).limit(limit)
        query = _within(query, project, environment)
        if not children:
            query = query.where(t.builds.c.parent.is_(None))
        if before is not None:
            query = query.where(t.builds.c.sequence < before)
        if by is not None:
            query = query.where(t.builds.c.submitted_by == by)
        return self._builds(query)

    def last_peak(self, project: str) -> int | None:
        """Return what the last of the project's newest builds says of its memory."""
        for row in self._sql.execute(_LAST_ENVELOPES, {"of": project}):
            peak = msgspec.json.decode(row.envelope, type=Envelope).peak_memory_bytes
            if peak is not None:
                return peak
        return None

    def durations(self, project: str | None) -> Sequence[timedelta]:
        """Return how long runners had the newest builds that succeeded."""
        columns = (t.builds.c.state, t.builds.c.granted_at, t.builds.c.finished_at)
        query = _within(sa.select(*columns).where(t.builds.c.children.is_(None)), project, None)
        newest = query.order_by(t.builds.c.sequence.desc()).limit(_DURATIONS_LOOKED_AT).subquery()
        took = (newest.c.finished_at - newest.c.granted_at).label("took")
        found = sa.select(took).where(newest.c.state == State.SUCCEEDED.value, took.is_not(None))
        rows = self._sql.execute(found.limit(DURATIONS_MAX))
        return [timedelta(seconds=max(0.0, row.took)) for row in rows]

    def add_build(self, stored: StoredBuild) -> StoredBuild:
        """Add a build and return it with its sequence."""
        row = {key: value for key, value in _build_row(stored).items() if key != "sequence"}
        sequence = self._sql.execute(_ADD_BUILD, row).inserted_primary_key
        assert sequence is not None
        return replace(stored, sequence=sequence[0])

    def save_build(self, stored: StoredBuild) -> None:
        """Store a build that was changed."""
        self._sql.execute(_SAVE_BUILD, {**_build_row(stored), "saved_id": stored.id})

    def ended_before(self, before: datetime, limit: int) -> Sequence[StoredBuild]:
        """Return builds that ended before a time, oldest first."""
        at = t.builds.c.finished_at
        parents = t.builds.c.parent.is_(None)
        query = sa.select(t.builds).where(at < before.timestamp(), parents).order_by(at)
        return self._builds(query.limit(limit))

    def delete_build(self, build_id: str) -> None:
        """Forget a build and its events."""
        self._sql.execute(sa.delete(t.events).where(t.events.c.build_id == build_id))
        self._sql.execute(sa.delete(t.builds).where(t.builds.c.id == build_id))

    def is_named(self, project: str, digest: str) -> bool:
        """Say whether a tag, another manifest or a build names a manifest."""
        if self.is_tagged(project, digest) or self.manifest_of(project, digest) is not None:
            return True
        ours = t.builds.c.reference.endswith(f"@{digest}", autoescape=True)
        query = sa.select(t.builds.c.id).where(t.builds.c.project == project, ours)
        return self._sql.execute(query.limit(1)).first() is not None

    def queued(
        self, after: int = 0, limit: int = 1000, *, project: str | None = None
    ) -> Sequence[StoredBuild]:
        """Return builds that wait, oldest first, those of a higher sequence."""
        named = {"after": after, "at_most": limit}
        if project is None:
            rows = self._sql.execute(_QUEUED, named)
        else:
            rows = self._sql.execute(_QUEUED_OF, {**named, "of": project})
        return [_build(row) for row in rows.mappings()]

    def queue_length(self, project: str | None = None) -> int:
        """Return how many builds wait, of a project or of all."""
        if project is None:
            return int(self._sql.execute(_QUEUE_LENGTH).scalar_one())
        return int(self._sql.execute(_QUEUE_LENGTH_OF, {"of": project}).scalar_one())

    def line(self) -> Sequence[InLine]:
        """Return all that waits for a runner, without the builds."""
        return [InLine._make(row) for row in self._sql.execute(_LINE)]

    def leased(
        self,
        *,
        runner: str | None = None,
        session: str | None = None,
        until: datetime | None = None,
    ) -> Sequence[StoredBuild]:
        """Return builds that a runner has: all, or of one runner or session, or that end."""
        query, named = _LEASED, {}
        if session is not None:
            query, named = _LEASED_IN_SESSION, {"session": session}
        if runner is not None:
            query = query.where(t.builds.c.last_runner == runner)
        if until is not None:
            query = query.where(t.builds.c.lease_expires_at <= until.timestamp())
        return [_build(row) for row in self._sql.execute(query, named).mappings()]

    def live_attempts(self) -> Sequence[LiveAttempt]:
        """Return the attempts that runners have now."""
        return [LiveAttempt._make(row) for row in self._sql.execute(_LIVE_ATTEMPTS)]

    def _builds(self, query: sa.Select[Any]) -> Sequence[StoredBuild]:
        return [_build(row) for row in self._sql.execute(query).mappings()]

    # Secrets of builds that have not ended.

    def add_secrets(self, build_id: str, locked: Mapping[str, bytes]) -> None:
        """Keep the secrets of a build, as the vault locked them."""
        names = ("build_id", "secret_id", "locked")
        rows = [dict(zip(names, (build_id, *pair), strict=True)) for pair in locked.items()]
        if rows:
            self._sql.execute(sa.insert(t.secrets), rows)

    def secrets(self, build_id: str) -> Mapping[str, bytes]:
        """Return the locked secrets of a build; none are left when it has ended."""
        query = sa.select(t.secrets.c.secret_id, t.secrets.c.locked)
        rows = self._sql.execute(query.where(t.secrets.c.build_id == build_id))
        return {row.secret_id: row.locked for row in rows}

    def forget_secrets(self, build_id: str) -> None:
        """Delete the secrets of a build."""
        self._sql.execute(sa.delete(t.secrets).where(t.secrets.c.build_id == build_id))

    # Events.

    def add_event(
        self, build_id: str, *, fence: int, log_size: int, kind: str, payload: bytes
    ) -> None:
        """Add an event after all others of its build."""
        row = {
            "of": build_id,
            "fence": fence,
            "log_size": log_size,
            "kind": kind,
            "payload": payload,
        }
        self._sql.execute(_ADD_EVENT, row)

    def events(self, build_id: str, after: int) -> Sequence[StoredEvent]:
        """Return the events of a build after one."""
        rows = self._sql.execute(_EVENTS, {"of": build_id, "after": after})
        return [StoredEvent(**row) for row in rows.mappings()]

    # Runners and join codes.

    def runners(self) -> Sequence[StoredRunner]:
        """Return all runners, by name."""
        return [_runner(row) for row in self._sql.execute(_RUNNERS).mappings()]

    def runner(self, name: str) -> StoredRunner | None:
        """Return one runner."""
        row = self._sql.execute(_RUNNER, {"called": name}).mappings().first()
        return _runner(row) if row is not None else None

    def save_runner(self, runner: StoredRunner) -> None:
        """Add a runner, or store one that was changed."""
        session = runner.session
        row = {
            "name": runner.name,
            "credential_hash": runner.credential_hash,
            "here": runner.here,
            "created_at": runner.created_at.timestamp(),
            "session_id": session.id if session else None,
            "process": session.process if session else None,
            "boot_id": session.boot_id if session else None,
            "started_ms": session.started_ms if session else None,
            "seen_at": session.seen_at.timestamp() if session else None,
            "turn": session.turn if session else None,
            "ended": session.ended if session else None,
            "silent_at": _seconds(session.silent_at) if session else None,
            "public_key": session.public_key if session else None,
            "state_id": runner.state_id,
            "capabilities": msgspec.json.encode(runner.capabilities),
            "slots": runner.slots,
            "reason": runner.reason,
            "refuses_since": runner.refuses_since.timestamp() if runner.refuses_since else None,
            "authorities": msgspec.json.encode(runner.authorities),
        }
        upsert(self._sql, t.runners, row)

    def delete_runner(self, name: str) -> None:
        """Forget a runner, and the join codes that would bring it back."""
        self._sql.execute(sa.delete(t.runners).where(t.runners.c.name == name))
        self._sql.execute(sa.delete(t.codes).where(t.codes.c.runner == name))

    def code(self, secret_hash: str) -> Code | None:
        """Return a join code."""
        query = sa.select(t.codes).where(t.codes.c.secret_hash == secret_hash)
        row = self._sql.execute(query).mappings().first()
        if row is None:
            return None
        expires_at = _time(row["expires_at"])
        return Code(runner=row["runner"], expires_at=expires_at, spent_by=row["spent_by"])

    def save_code(self, secret_hash: str, code: Code) -> None:
        """Add a join code, or store one that was used."""
        row = {
            "secret_hash": secret_hash,
            "runner": code.runner,
            "expires_at": code.expires_at.timestamp(),
            "spent_by": code.spent_by,
        }
        upsert(self._sql, t.codes, row)

    def revoke_codes(self, now: datetime) -> int:
        """Forget all join codes; return how many could still have been used."""
        usable = t.codes.c.spent_by.is_(None) & (t.codes.c.expires_at > now.timestamp())
        query = sa.select(sa.func.count()).select_from(t.codes).where(usable)
        count = self._sql.execute(query).scalar_one()
        self._sql.execute(sa.delete(t.codes))
        return int(count)

    def runner_by_credential(self, credential_hash: str) -> StoredRunner | None:
        """Return the runner whose hash begins as this one does; the caller compares the whole."""
        part = {"part": credential_hash[:SELECTOR_LENGTH]}
        row = self._sql.execute(_RUNNER_BY_HASH, part).mappings().first()
        return _runner(row) if row is not None else None

    # Contexts.

    def context(self, project: str, digest: str) -> ContextRef | None:
        """Return a context of a project; none: the project has no such context."""
        row = self._sql.execute(_CONTEXT, {"of": project, "digest": digest}).mappings().first()
        return ContextRef(**row) if row is not None else None

    def save_context(self, project: str, context: ContextRef, now: datetime) -> None:
        """Add a context, or say that it is used now."""
        row = {"project": project, **msgspec.structs.asdict(context), "used_at": now.timestamp()}
        upsert(self._sql, t.contexts, row)

    def forget_contexts(self, before: datetime) -> Sequence[tuple[str, str]]:
        """Forget contexts that were not used since and that no open build needs; return them."""
        needed = {
            (stored.submit.project, stored.submit.context.digest)
            for stored in (*self.queued(limit=_ALL), *self.leased())
        }
        query = sa.select(t.contexts.c.project, t.contexts.c.digest).where(
            t.contexts.c.used_at < before.timestamp()
        )
        old = [(row.project, row.digest) for row in self._sql.execute(query)]
        forgotten = [pair for pair in old if pair not in needed]
        for project, digest in forgotten:
            here = (t.contexts.c.project == project, t.contexts.c.digest == digest)
            self._sql.execute(sa.delete(t.contexts).where(*here))
        return forgotten

    def alive_at(self) -> datetime | None:
        """Return when the control plane last accepted heartbeats."""
        at = self._sql.execute(sa.select(t.alive.c.at)).scalar()
        return _time(at) if at is not None else None

    def mark_alive(self, now: datetime) -> None:
        """Say that heartbeats are accepted now."""
        upsert(self._sql, t.alive, {"id": 1, "at": now.timestamp()})


def _within(query: sa.Select[Any], project: str | None, environment: str | None) -> sa.Select[Any]:
    if project is not None:
        query = query.where(t.builds.c.project == project)
    if environment is not None:
        query = query.where(t.builds.c.environment == environment)
    return query


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_time(seconds: float | None) -> datetime | None:
    return _time(seconds) if seconds is not None else None


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at is not None else None


def _build(row: sa.RowMapping) -> StoredBuild:
    return StoredBuild(
        build=_machine(row),
        sequence=row["sequence"],
        submit=msgspec.json.decode(row["submit"], type=Submit),
        trusted=row["trusted"],
        created_at=_time(row["created_at"]),
        queued_since=_time(row["queued_since"]),
        idle_since=None if row["idle_since"] is None else _time(row["idle_since"]),
        here_reason=row["here_reason"],
        started_at=_maybe_time(row["started_at"]),
        granted_at=_maybe_time(row["granted_at"]),
        last_runner=row["last_runner"],
        last_request=row["last_request"],
        envelope=msgspec.json.decode(row["envelope"], type=Envelope) if row["envelope"] else None,
        reference=row["reference"],
        log_prefix=row["log_prefix"],
        log_complete=row["log_complete"],
        secrets_mac=row["secrets_mac"],
        submitted_by=row["submitted_by"],
        preview=row["preview"],
        peak_bytes=row["peak_bytes"],
        parent=row["parent"],
    )


def _machine(row: sa.RowMapping) -> Build:
    wish = None
    if row["cancel_by"] is not None:
        wish = CancelWish(by=row["cancel_by"], reason=row["cancel_reason"])
    if row["children"] is not None:
        return Parent(
            id=row["id"],
            state=State(row["state"]),
            cancel=wish,
            finished_at=_maybe_time(row["finished_at"]),
            children=msgspec.json.decode(row["children"], type=tuple[Child, ...]),
            culprit=row["culprit"],
        )
    lease = None
    if row["lease_session"] is not None:
        lease = Lease(
            runner=row["last_runner"],
            session=row["lease_session"],
            request_id=row["last_request"],
            fence=row["fence"],
            expires_at=_time(row["lease_expires_at"]),
            ends_at=_maybe_time(row["lease_ends_at"]),
        )
    return Build(
        id=row["id"],
        state=State(row["state"]),
        fence=row["fence"],
        attempts=row["attempts"],
        broken_on=tuple(row["broken_on"].split()),
        broken_why=row["broken_why"],
        lease=lease,
        phase=row["phase"],
        cancel=wish,
        result=row["result"],
        finished_at=_maybe_time(row["finished_at"]),
    )


def _build_row(stored: StoredBuild) -> dict[str, Any]:
    build, lease = stored.build, stored.build.lease
    parent = build if isinstance(build, Parent) else None
    return {
        "id": build.id,
        "sequence": stored.sequence,
        "project": stored.submit.project,
        "environment": stored.submit.environment,
        "key": stored.submit.key,
        "supersedes": stored.submit.supersedes,
        "submit": msgspec.json.encode(stored.submit),
        "trusted": stored.trusted,
        "created_at": stored.created_at.timestamp(),
        "queued_since": stored.queued_since.timestamp(),
        "idle_since": _seconds(stored.idle_since),
        "here_reason": stored.here_reason,
        "started_at": _seconds(stored.started_at),
        "granted_at": _seconds(stored.granted_at),
        "last_runner": lease.runner if lease else stored.last_runner,
        "last_request": lease.request_id if lease else stored.last_request,
        "envelope": msgspec.json.encode(stored.envelope) if stored.envelope else None,
        "reference": stored.reference,
        "log_prefix": stored.log_prefix,
        "log_complete": stored.log_complete,
        "secrets_mac": stored.secrets_mac,
        "submitted_by": stored.submitted_by,
        "preview": stored.preview,
        "peak_bytes": stored.peak_bytes,
        "parent": stored.parent,
        "children": msgspec.json.encode(parent.children) if parent else None,
        "culprit": parent.culprit if parent else None,
        "state": build.state.value,
        "fence": build.fence,
        "attempts": build.attempts,
        "broken_on": " ".join(build.broken_on),
        "broken_why": build.broken_why,
        "phase": build.phase,
        "lease_session": lease.session if lease else None,
        "lease_expires_at": _seconds(lease.expires_at) if lease else None,
        "lease_ends_at": _seconds(lease.ends_at) if lease and lease.ends_at else None,
        "cancel_by": build.cancel.by if build.cancel else None,
        "cancel_reason": build.cancel.reason if build.cancel else None,
        "result": build.result,
        "finished_at": _seconds(build.finished_at),
    }


def _runner(row: sa.RowMapping) -> StoredRunner:
    session = None
    if row["session_id"] is not None:
        session = Session(
            id=row["session_id"],
            runner=row["name"],
            process=row["process"],
            boot_id=row["boot_id"],
            started_ms=row["started_ms"],
            seen_at=_time(row["seen_at"]),
            turn=row["turn"],
            ended=row["ended"],
            silent_at=None if row["silent_at"] is None else _time(row["silent_at"]),
            public_key=row["public_key"],
        )
    return StoredRunner(
        name=row["name"],
        credential_hash=row["credential_hash"],
        here=row["here"],
        created_at=_time(row["created_at"]),
        state_id=row["state_id"],
        session=session,
        capabilities=msgspec.json.decode(row["capabilities"], type=Capabilities | None),
        slots=row["slots"],
        reason=row["reason"],
        refuses_since=None if row["refuses_since"] is None else _time(row["refuses_since"]),
        authorities=msgspec.json.decode(row["authorities"], type=tuple[str, ...] | None),
    )
