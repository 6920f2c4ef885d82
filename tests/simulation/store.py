"""The router's store in memory: what it holds survives the router, as a disk would.

A transaction that raises leaves nothing behind. After one that does not, the world is told what
changed: that is where the checkers look.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pierhead.protocol.plan import ContextRef
from pierhead.router.domain.build import State
from pierhead.router.domain.credential import Credential
from pierhead.router.domain.enrollment import Code
from pierhead.router.domain.forecast import DURATIONS_MAX
from pierhead.router.domain.naming import family_of
from pierhead.router.domain.parent import Parent
from pierhead.router.domain.turns import InLine
from pierhead.router.domain.upstream import Image, Login
from pierhead.router.ports.builds import LiveAttempt, StoredBuild, StoredEvent
from pierhead.router.ports.images import Link, Manifest
from pierhead.router.ports.machines import StoredRunner
from pierhead.router.ports.mirror import Mirrored
from pierhead.router.ports.projects import Contents, StoredEnvironment, StoredProject
from pierhead.router.ports.store import Ledger

T = TypeVar("T")


@dataclass
class MemoryLedger:
    """Everything that the router keeps, as plain tables."""

    builds_: dict[str, StoredBuild] = field(default_factory=dict)
    events_: dict[tuple[str, int], StoredEvent] = field(default_factory=dict)
    runners_: dict[str, StoredRunner] = field(default_factory=dict)
    codes_: dict[str, Code] = field(default_factory=dict)
    credentials_: dict[str, Credential] = field(default_factory=dict)
    environments_: dict[tuple[str, str], StoredEnvironment] = field(default_factory=dict)
    projects_: dict[str, StoredProject] = field(default_factory=dict)
    turns_: dict[str, int] = field(default_factory=dict)
    contexts_: dict[tuple[str, str], tuple[ContextRef, datetime]] = field(default_factory=dict)
    manifests_: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    blobs_: dict[tuple[str, str, str], datetime] = field(default_factory=dict)
    tags_: dict[tuple[str, str], str] = field(default_factory=dict)
    secrets_: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    alive_: dict[str, datetime] = field(default_factory=dict)
    logins_: dict[tuple[str, str], tuple[Login, Mapping[str, bytes]]] = field(default_factory=dict)
    mirrored_: dict[tuple[str, Image], Mirrored] = field(default_factory=dict)
    mirrored_sizes_: dict[tuple[str, Image], tuple[int, datetime]] = field(default_factory=dict)
    mirrored_blobs_: dict[tuple[str, str, str, str], datetime] = field(default_factory=dict)

    def copy(self) -> "MemoryLedger":
        return MemoryLedger(**{each.name: dict(getattr(self, each.name)) for each in fields(self)})

    def build(self, build_id: str) -> StoredBuild | None:
        return self.builds_.get(build_id)

    def build_by_key(self, project: str, key: str) -> StoredBuild | None:
        wanted = (project, key)
        return next(
            (b for b in self.builds_.values() if (b.submit.project, b.submit.key) == wanted), None
        )

    def open_in_group(self, project: str, group: str) -> Sequence[StoredBuild]:
        wanted = (project, group)
        return [
            b
            for b in self.builds_.values()
            if (b.submit.project, b.submit.supersedes) == wanted and b.build.finished_at is None
        ]

    def builds_with_prefix(
        self, prefix: str, project: str | None, environment: str | None = None
    ) -> Sequence[StoredBuild]:
        children = prefix != family_of(prefix)
        page = self.builds_page(
            project, len(self.builds_), None, environment=environment, children=children
        )
        return page[:1] if prefix == "@" else [b for b in page if b.id.startswith(prefix)][:2]

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
        newest = sorted(self.builds_.values(), key=lambda stored: -stored.sequence)
        mine = [b for b in newest if project in {None, b.submit.project}]
        mine = [b for b in mine if environment in {None, b.submit.environment}]
        mine = [b for b in mine if by in {None, b.submitted_by}]
        mine = [b for b in mine if children or b.parent is None]
        return [b for b in mine if before is None or b.sequence < before][:limit]

    def last_peak(self, project: str) -> int | None:
        ended = [b for b in self.builds_.values() if b.submit.project == project and b.envelope]
        newest = sorted(ended, key=lambda stored: -stored.sequence)[:5]
        peaks = [b.envelope.peak_memory_bytes for b in newest if b.envelope]
        return next((peak for peak in peaks if peak is not None), None)

    def durations(self, project: str | None) -> Sequence[timedelta]:
        newest = sorted(self._of_runners(), key=lambda stored: -stored.sequence)
        mine = [b for b in newest if project in {None, b.submit.project}][:50]
        took = [
            b.build.finished_at - b.granted_at
            for b in mine
            if b.build.state is State.SUCCEEDED and b.build.finished_at and b.granted_at
        ]
        return [max(timedelta(), one) for one in took[:DURATIONS_MAX]]

    def add_build(self, stored: StoredBuild) -> StoredBuild:
        last = max((b.sequence for b in self.builds_.values()), default=0)
        added = replace(stored, sequence=last + 1)
        self.builds_[stored.id] = added
        return added

    def save_build(self, stored: StoredBuild) -> None:
        self.builds_[stored.id] = stored

    def add_secrets(self, build_id: str, locked: Mapping[str, bytes]) -> None:
        if locked:
            self.secrets_[build_id] = dict(locked)

    def secrets(self, build_id: str) -> Mapping[str, bytes]:
        return self.secrets_.get(build_id, {})

    def forget_secrets(self, build_id: str) -> None:
        self.secrets_.pop(build_id, None)

    def ended_before(self, before: datetime, limit: int) -> Sequence[StoredBuild]:
        ended = [
            (one.build.finished_at, one)
            for one in self.builds_.values()
            if one.build.finished_at is not None
            and one.build.finished_at < before
            and one.parent is None
        ]
        return [one for _, one in sorted(ended, key=lambda pair: pair[0])][:limit]

    def delete_build(self, build_id: str) -> None:
        del self.builds_[build_id]
        for name in [name for name in self.events_ if name[0] == build_id]:
            del self.events_[name]

    def is_named(self, project: str, digest: str) -> bool:
        tagged = any((owner, to) == (project, digest) for (owner, _), to in self.tags_.items())
        built = any(
            one.submit.project == project and (one.reference or "").endswith(f"@{digest}")
            for one in self.builds_.values()
        )
        return tagged or built or self.manifest_of(project, digest) is not None

    def queued(
        self, after: int = 0, limit: int = 1000, *, project: str | None = None
    ) -> Sequence[StoredBuild]:
        waiting = [b for b in self._for_runners(State.QUEUED) if b.sequence > after]
        return [b for b in waiting if project in {None, b.submit.project}][:limit]

    def queue_length(self, project: str | None = None) -> int:
        return sum(project in {None, b.submit.project} for b in self._for_runners(State.QUEUED))

    def leased(
        self,
        *,
        runner: str | None = None,
        session: str | None = None,
        until: datetime | None = None,
    ) -> Sequence[StoredBuild]:
        held = [(b, b.build.lease) for b in self._for_runners(State.LEASED)]
        return [
            b
            for b, lease in held
            if lease
            and runner in {None, lease.runner}
            and session in {None, lease.session}
            and (until is None or lease.expires_at <= until)
        ]

    def live_attempts(self) -> Sequence[LiveAttempt]:
        return [
            LiveAttempt(b.submit.project, b.id, b.build.fence, b.build.lease.runner)
            for b in self.leased()
            if b.build.lease
        ]

    def line(self) -> Sequence[InLine]:
        return [
            InLine(b.submit.project, b.sequence, self.turns_.get(b.submit.project, 0))
            for b in self._for_runners(State.QUEUED)
        ]

    def take_turn(self, project: str) -> None:
        self.turns_[project] = max(self.turns_.values(), default=0) + 1

    def give_turn_back(self, project: str) -> None:
        self.turns_[project] = 0

    def _for_runners(self, state: State) -> Sequence[StoredBuild]:
        return [b for b in self._of_runners() if b.build.state is state]

    def _of_runners(self) -> Sequence[StoredBuild]:
        return [b for b in self.builds_.values() if not isinstance(b.build, Parent)]

    def add_event(
        self, build_id: str, *, fence: int, log_size: int, kind: str, payload: bytes
    ) -> None:
        sequence = len(self.events(build_id, 0)) + 1
        event = StoredEvent(
            sequence=sequence, fence=fence, log_size=log_size, kind=kind, payload=payload
        )
        self.events_[build_id, sequence] = event

    def events(self, build_id: str, after: int) -> Sequence[StoredEvent]:
        return [e for (owner, n), e in self.events_.items() if owner == build_id and n > after]

    def runners(self) -> Sequence[StoredRunner]:
        return [self.runners_[name] for name in sorted(self.runners_)]

    def runner(self, name: str) -> StoredRunner | None:
        return self.runners_.get(name)

    def save_runner(self, runner: StoredRunner) -> None:
        self.runners_[runner.name] = runner

    def delete_runner(self, name: str) -> None:
        self.runners_.pop(name, None)
        for secret_hash in [h for h, code in self.codes_.items() if code.runner == name]:
            del self.codes_[secret_hash]

    def code(self, secret_hash: str) -> Code | None:
        return self.codes_.get(secret_hash)

    def save_code(self, secret_hash: str, code: Code) -> None:
        self.codes_[secret_hash] = code

    def revoke_codes(self, now: datetime) -> int:
        usable = [c for c in self.codes_.values() if c.spent_by is None and c.expires_at > now]
        self.codes_.clear()
        return len(usable)

    def runner_by_credential(self, credential_hash: str) -> StoredRunner | None:
        part = credential_hash[:32]
        return next((r for r in self.runners_.values() if r.credential_hash[:32] == part), None)

    def project(self, name: str) -> StoredProject | None:
        return self.projects_.get(name)

    def projects_page(self, limit: int, after: str, only: str | None) -> Sequence[StoredProject]:
        names = [name for name in sorted(self.projects_) if name > after and only in {None, name}]
        return [
            replace(self.projects_[name], builds=self._builds_of(name)) for name in names[:limit]
        ]

    def removing(self) -> Sequence[str]:
        return [project.name for project in self.projects_.values() if project.removing]

    def save_project(self, project: StoredProject) -> None:
        self.projects_[project.name] = replace(project, builds=0)

    def contents(self, project: str) -> Contents:
        mine = [b for b in self._whole() if b.submit.project == project]
        lives = [c for c in self._of(project).values() if c.revoked_at is None]
        return Contents(
            builds=len(mine),
            open_builds=sum(b.build.finished_at is None for b in mine),
            images=sum(key[0] == project for key in self.manifests_),
            tags=sum(key[0] == project for key in self.tags_),
            environments=sum(key[0] == project for key in self.environments_),
            tokens=len(lives),
        )

    def purge_project(self, project: str, limit: int) -> tuple[bool, Sequence[str]]:
        gone = [b.id for b in self.builds_.values() if b.submit.project == project]
        for build_id in gone:
            del self.builds_[build_id]
        tables: list[dict[Any, Any]] = [self.manifests_, self.blobs_, self.tags_, self.contexts_]
        for table in (*tables, self.environments_):
            for key in [key for key in table if key[0] == project]:
                del table[key]
        for token_id in self._of(project):
            del self.credentials_[token_id]
        for host, whose in [key for key in self.logins_ if key[1] == project]:
            del self.logins_[host, whose]
        if not gone:
            self.projects_.pop(project, None)
            self.turns_.pop(project, None)
        return bool(gone), gone

    def environment(self, project: str, name: str) -> StoredEnvironment | None:
        return self.environments_.get((project, name))

    def environments_page(
        self, project: str, limit: int, after: str
    ) -> Sequence[StoredEnvironment]:
        mine = [e for (of, name), e in sorted(self.environments_.items()) if of == project]
        later = [e for e in mine if e.name > after][:limit]
        return [replace(e, builds=self._builds_of(project, e.name)) for e in later]

    def save_environment(self, environment: StoredEnvironment) -> None:
        key = (environment.project, environment.name)
        self.environments_[key] = replace(environment, builds=0)

    def drop_environment(self, project: str, name: str) -> None:
        self.environments_.pop((project, name), None)

    def open_builds(self, project: str, environment: str) -> int:
        mine = (b for b in self._whole() if b.submit.environment == environment)
        return sum(b.submit.project == project and b.build.finished_at is None for b in mine)

    def credential(self, token_id: str) -> Credential | None:
        return self.credentials_.get(token_id)

    def credential_by_hash(self, token_hash: str) -> Credential | None:
        return next((c for c in self.credentials_.values() if c.hash[:32] == token_hash[:32]), None)

    def credential_by_key(self, project: str | None, key: str) -> Credential | None:
        return next((c for c in self._of(project).values() if c.key == key), None)

    def credentials_page(
        self, project: str | None, limit: int, before: int | None
    ) -> Sequence[tuple[int, Credential]]:
        numbered = list(enumerate(self.credentials_.values(), 1))
        mine = [pair for pair in reversed(numbered) if pair[1].terms.project == project]
        return [pair for pair in mine if before is None or pair[0] < before][:limit]

    def save_credential(self, credential: Credential) -> None:
        self.credentials_[credential.id] = credential

    def revoke_credentials(self, project: str, environment: str | None, now: datetime) -> int:
        mine = [
            c
            for c in self._of(project).values()
            if c.revoked_at is None and environment in {None, c.terms.environment}
        ]
        for one in mine:
            self.credentials_[one.id] = replace(one, revoked_at=now)
        return len(mine)

    def forget_credentials(self, project: str | None, dead_before: datetime) -> None:
        for one in self._of(project).values():
            ends = [at for at in (one.revoked_at, one.expires_at) if at is not None]
            if any(at < dead_before for at in ends):
                del self.credentials_[one.id]

    def note_uses(self, uses: Mapping[str, datetime]) -> None:
        for token_id, at in uses.items():
            if token_id in self.credentials_:
                known = self.credentials_[token_id]
                self.credentials_[token_id] = replace(known, used_at=max(known.used_at or at, at))

    def _of(self, project: str | None) -> dict[str, Credential]:
        return {c.id: c for c in self.credentials_.values() if c.terms.project == project}

    def _builds_of(self, project: str, environment: str | None = None) -> int:
        mine = [b.submit for b in self._whole() if b.submit.project == project]
        return sum(environment in {None, submit.environment} for submit in mine)

    def _whole(self) -> Sequence[StoredBuild]:
        return [b for b in self.builds_.values() if b.parent is None]

    def context(self, project: str, digest: str) -> ContextRef | None:
        found = self.contexts_.get((project, digest))
        return found and found[0]

    def save_context(self, project: str, context: ContextRef, now: datetime) -> None:
        self.contexts_[project, context.digest] = context, now

    def forget_contexts(self, before: datetime) -> Sequence[tuple[str, str]]:
        needed = {
            (stored.submit.project, stored.submit.context.digest)
            for stored in (*self.queued(), *self.leased())
        }
        old = [pair for pair, (_, used) in self.contexts_.items() if used < before]
        forgotten = [pair for pair in old if pair not in needed]
        for pair in forgotten:
            del self.contexts_[pair]
        return forgotten

    def alive_at(self) -> datetime | None:
        return self.alive_.get("router")

    def mark_alive(self, now: datetime) -> None:
        self.alive_["router"] = now

    def manifest(self, repository: str, wanted: str, attempt: str) -> Manifest | None:
        digest = self.tags_.get((repository, wanted), wanted)
        published = self.manifests_.get((repository, digest, ""))
        return published or self.manifests_.get((repository, digest, attempt))

    def add_manifest(self, manifest: Manifest, pending: str) -> None:
        self.manifests_[manifest.repository, manifest.digest, pending] = manifest

    def delete_manifest(self, repository: str, wanted: str) -> bool:
        if not wanted.startswith("sha256:"):
            return self.tags_.pop((repository, wanted), None) is not None
        for name in [n for n, to in self.tags_.items() if (n[0], to) == (repository, wanted)]:
            del self.tags_[name]
        return self.manifests_.pop((repository, wanted, ""), None) is not None

    def referrers(
        self, repository: str, subject: str, attempt: str, after: str, limit: int
    ) -> Sequence[Manifest]:
        found = {
            one.digest: one
            for (owner, digest, pending), one in sorted(self.manifests_.items())
            if (owner, one.subject) == (repository, subject)
            and pending in ("", attempt)
            and digest > after
        }
        return list(found.values())[:limit]

    def has_blob(self, repository: str, digest: str, attempt: str) -> bool:
        return self.told_at(repository, digest, attempt) is not None

    def is_linked(self, repository: str, digest: str, pending: str) -> bool:
        return (repository, digest, pending) in self.blobs_

    def link_blob(self, repository: str, digest: str, pending: str, now: datetime) -> None:
        self.blobs_[repository, digest, pending] = now

    def told_at(self, repository: str, digest: str, attempt: str) -> datetime | None:
        told = [self.blobs_.get((repository, digest, pending)) for pending in ("", attempt)]
        return max((at for at in told if at is not None), default=None)

    def unlink_blob(self, repository: str, digest: str) -> bool:
        return self.blobs_.pop((repository, digest, ""), None) is not None

    def manifest_of(self, repository: str, part: str) -> str | None:
        return next(
            (
                one.digest
                for (owner, *_), one in self.manifests_.items()
                if owner == repository and part in one.parts
            ),
            None,
        )

    def set_tag(self, repository: str, tag: str, digest: str) -> None:
        self.tags_[repository, tag] = digest

    def tags(self, repository: str, after: str, limit: int) -> Sequence[str]:
        found = [tag for owner, tag in self.tags_ if owner == repository and tag > after]
        return sorted(found)[:limit]

    def repositories(self, after: str, limit: int) -> Sequence[str]:
        found = {name for name, _, pending in self.manifests_ if not pending and name > after}
        return sorted(found)[:limit]

    def has_repository(self, repository: str) -> bool:
        return any((name, pending) == (repository, "") for name, _, pending in self.manifests_)

    def idle_links(self, before: datetime, after: Link, limit: int) -> Sequence[Link]:
        old = [
            Link(repository, digest)
            for (repository, digest, pending), told in self.blobs_.items()
            if not pending and told < before and self.manifest_of(repository, digest) is None
        ]
        return sorted(link for link in old if link > after)[:limit]

    def forget_links(self, before: datetime, links: Sequence[Link]) -> int:
        idle = {*self.idle_links(before, Link(), len(self.blobs_))}.intersection(links)
        for link in idle:
            del self.blobs_[link.repository, link.digest, ""]
        return len(idle)

    def unlinked(self, digests: Sequence[str]) -> Sequence[str]:
        needed = {name[1] for name in self.blobs_} | {key[3] for key in self.mirrored_blobs_}
        return [digest for digest in digests if digest not in needed]

    def publish(self, repository: str, pending: str) -> None:
        for name in [name for name in self.manifests_ if name[::2] == (repository, pending)]:
            self.manifests_[name[0], name[1], ""] = self.manifests_.pop(name)
        for blob in [blob for blob in self.blobs_ if blob[::2] == (repository, pending)]:
            told = self.blobs_.pop(blob)
            self.blobs_.setdefault((blob[0], blob[1], ""), told)

    def forget(self, repository: str, pending: str) -> None:
        for name in [name for name in self.manifests_ if name[::2] == (repository, pending)]:
            del self.manifests_[name]
        for blob in [blob for blob in self.blobs_ if blob[::2] == (repository, pending)]:
            del self.blobs_[blob]

    def logins(self) -> Sequence[Login]:
        return [login for _, (login, _) in sorted(self.logins_.items(), key=lambda pair: pair[0])]

    def locked_login(self, login_id: str) -> Mapping[str, bytes]:
        found = (locked for login, locked in self.logins_.values() if login.id == login_id)
        return next(found, {})

    def save_login(self, login: Login, locked: Mapping[str, bytes]) -> None:
        self.drop_login(login.host, login.project)
        self.logins_[login.host, login.project] = (login, dict(locked))

    def drop_login(self, host: str, project: str) -> Login | None:
        if (host, project) not in self.logins_:
            return None
        login, _ = self.logins_.pop((host, project))
        for key in [key for key in self.mirrored_ if key[0] == login.id]:
            del self.mirrored_[key]
        for size in [size for size in self.mirrored_sizes_ if size[0] == login.id]:
            del self.mirrored_sizes_[size]
        for blob in [blob for blob in self.mirrored_blobs_ if blob[0] == login.id]:
            del self.mirrored_blobs_[blob]
        return login

    def mirrored(self, scope: str, image: Image) -> Mirrored | None:
        return self.mirrored_.get((scope, image))

    def keep_mirrored(self, scope: str, image: Image, found: Mirrored) -> None:
        self.mirrored_[scope, image] = found

    def mirrored_size(self, scope: str, image: Image) -> int | None:
        return self.mirrored_sizes_.get((scope, image), (None, None))[0]

    def keep_mirrored_size(self, scope: str, image: Image, size_bytes: int, now: datetime) -> None:
        most = max(size_bytes, self.mirrored_size(scope, image) or 0)
        self.mirrored_sizes_[scope, image] = most, now

    def mirrored_blob(self, scope: str, host: str, name: str, digest: str) -> datetime | None:
        return self.mirrored_blobs_.get((scope, host, name, digest))

    def was_mirrored(self, host: str, name: str, digest: str) -> bool:
        return any(key[1:] == (host, name, digest) for key in self.mirrored_blobs_)

    def keep_mirrored_blob(
        self, scope: str, host: str, name: str, digest: str, now: datetime
    ) -> None:
        self.mirrored_blobs_[scope, host, name, digest] = now

    def forget_mirrored(self, before: datetime, limit: int) -> int:
        old = [key for key, found in self.mirrored_.items() if found.checked_at < before][:limit]
        said = [key for key, one in self.mirrored_sizes_.items() if one[1] < before][:limit]
        unused = [key for key, at in self.mirrored_blobs_.items() if at < before][:limit]
        for key in old:
            del self.mirrored_[key]
        for size in said:
            del self.mirrored_sizes_[size]
        for blob in unused:
            del self.mirrored_blobs_[blob]
        return max(len(old), len(said), len(unused))


Watcher = Callable[[Mapping[str, StoredBuild], MemoryLedger], None]


class MemoryStore:
    """One ledger, and somebody who is told after each commit."""

    def __init__(self, watch: Watcher, after_commit: Callable[[], None]) -> None:
        self.ledger = MemoryLedger()
        self.configs: dict[str, bytes] = {}  # blobs, by digest
        self._watch = watch
        self._after_commit = after_commit  # may end the router before it can answer

    async def write(self, operation: Callable[[Ledger], T]) -> T:
        saved = self.ledger.copy()
        try:
            result = operation(self.ledger)
        except BaseException:
            self.ledger = saved
            raise
        self._watch(saved.builds_, self.ledger)
        self._after_commit()
        return result

    async def read(self, operation: Callable[[Ledger], T]) -> T:
        return operation(self.ledger)


@dataclass
class MemoryLogs:
    """Logs as bytes that survive the router."""

    kept: dict[tuple[str, int], bytes] = field(default_factory=dict)

    async def append(self, build_id: str, fence: int, offset: int, data: bytes) -> None:
        stored = self.kept.get((build_id, fence), b"")
        assert offset == len(stored), "the router appends where the log ends"
        self.kept[build_id, fence] = stored + data

    def begin(self, build_id: str, fence: int, note: bytes) -> None:
        self.kept[build_id, fence] = note

    def size(self, build_id: str, fence: int) -> int:
        return len(self.kept.get((build_id, fence), b""))

    async def read(self, build_id: str, fence: int, offset: int, limit: int) -> bytes:
        return self.kept.get((build_id, fence), b"")[offset : offset + limit]

    async def hide(self, build_id: str, fence: int, offset: int, length: int) -> None:
        stored = self.kept[build_id, fence]
        self.kept[build_id, fence] = stored[:offset] + b"*" * length + stored[offset + length :]

    async def drop(self, build_id: str) -> None:
        for key in [key for key in self.kept if key[0] == build_id]:
            del self.kept[key]

    def untouched(self, before: float) -> Sequence[str]:
        return sorted({build_id for build_id, _ in self.kept})
