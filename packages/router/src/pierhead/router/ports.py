"""What the router needs from outside, in sentences.

A `Ledger` is what one transaction can see and change; a `Store` runs functions over it. Whatever a
function changes is on the disk when `write` returns, or nothing of it is.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from pierhead.protocol.lease import Sealed
from pierhead.protocol.plan import ContextRef, Submit
from pierhead.protocol.registry import LoginKind
from pierhead.protocol.result import Envelope
from pierhead.protocol.runner import Capabilities
from pierhead.protocol.tree import Entry
from pierhead.router.domain.build import Build
from pierhead.router.domain.credential import Credential
from pierhead.router.domain.enrollment import Code
from pierhead.router.domain.session import Session
from pierhead.router.domain.upstream import Image, Login
from pierhead.server.stretch import Stretch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBuild:
    """A build with what is kept beside the machine's state."""

    build: Build
    sequence: int  # rises with each submission
    submit: Submit
    trusted: bool
    created_at: datetime
    queued_since: datetime
    here_reason: str | None = None  # not none: here may take it, and why
    started_at: datetime | None = None
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
class StoredRunner:
    """A runner with its current session."""

    name: str
    credential_hash: str
    here: bool = False
    created_at: datetime
    session: Session | None = None
    state_id: str | None = None  # of its state folder: a copy of it has another
    capabilities: Capabilities | None = None
    slots: int = 0  # asked for with the last acquire
    reason: str | None = None  # why it takes nothing, in its own words
    refuses_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProject:
    """A project."""

    name: str
    trusted: bool
    created_at: datetime
    removing: bool = False  # it takes nothing any more, and its builds and images go
    builds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEnvironment:
    """An environment of a project."""

    project: str
    name: str
    preview: bool
    created_at: datetime
    builds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """How much there is in a project."""

    builds: int
    open_builds: int
    images: int
    tags: int
    environments: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """One event of a build. `log_size`: how long its attempt's log was when it happened."""

    sequence: int
    fence: int
    log_size: int
    kind: str
    payload: bytes  # the event's JSON, without its cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPage:
    """A page of a tree that came, and what is in it."""

    digest: bytes
    page: bytes
    entries: Sequence[Entry]


class SealedPage(NamedTuple):
    """A page whose part of the archive is made."""

    digest: bytes
    page: bytes
    files: int
    size_bytes: int  # of all its files
    tar_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as it was pushed, byte for byte."""

    repository: str
    digest: str
    media_type: str
    body: bytes
    parts: tuple[str, ...] = ()  # digests of what it cannot do without; not read back
    subject: str | None = None  # digest of the manifest that it is about


class Images(Protocol):
    """One transaction over what the registry keeps.

    `pending` is the attempt that pushed something, or empty for what all of the repository see;
    `attempt` is who is asking, or empty: it sees both.
    """

    def manifest(self, repository: str, wanted: str, attempt: str) -> Manifest | None:
        """Return a manifest by digest or tag."""
        ...

    def add_manifest(self, manifest: Manifest, pending: str) -> None:
        """Store a manifest; `pending`: only for this attempt."""
        ...

    def delete_manifest(self, repository: str, wanted: str) -> bool:
        """Delete a tag, or a manifest with the tags on it; false: there was none."""
        ...

    def referrers(
        self, repository: str, subject: str, attempt: str, after: str, limit: int
    ) -> Sequence[Manifest]:
        """Return the manifests about another one, by digest, those after a digest."""
        ...

    def has_blob(self, repository: str, digest: str, attempt: str) -> bool:
        """Say whether a blob is linked where the attempt sees it."""
        ...

    def is_linked(self, repository: str, digest: str, pending: str) -> bool:
        """Say whether there is this very link."""
        ...

    def link_blob(self, repository: str, digest: str, pending: str, now: datetime) -> None:
        """Make a blob visible, or note that somebody was told that it is."""
        ...

    def told_at(self, repository: str, digest: str, attempt: str) -> datetime | None:
        """Return when somebody was last told that a blob is here; none: it is not."""
        ...

    def unlink_blob(self, repository: str, digest: str) -> bool:
        """Take a blob out of a repository; false: it was not in it."""
        ...

    def manifest_of(self, repository: str, part: str) -> str | None:
        """Return the digest of a manifest that cannot do without a part, if there is one."""
        ...

    def set_tag(self, repository: str, tag: str, digest: str) -> None:
        """Move a tag."""
        ...

    def tags(self, repository: str, after: str, limit: int) -> Sequence[str]:
        """Return the tags of a repository after one, sorted by their bytes."""
        ...

    def repositories(self, after: str, limit: int) -> Sequence[str]:
        """Return the repositories in which everybody sees something, after one, sorted."""
        ...

    def has_repository(self, repository: str) -> bool:
        """Say whether everybody who may sees something in a repository."""
        ...

    def publish(self, repository: str, pending: str) -> None:
        """Make all that an attempt pushed visible to its project."""
        ...

    def forget(self, repository: str, pending: str) -> None:
        """Drop what an attempt pushed and nobody accepted."""
        ...

    def forget_links(self, before: datetime, limit: int) -> int:
        """Drop links that no manifest of their repository needs and nobody was told of since."""
        ...

    def unlinked(self, digests: Sequence[str]) -> Sequence[str]:
        """Return those that no repository links, and nothing that was mirrored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A manifest of another registry, as it came. `checked_at`: when it last said so itself."""

    digest: str
    media_type: str
    body: bytes
    checked_at: datetime


class Mirror(Protocol):
    """The part of a transaction that base images see.

    `scope`: the id of the login under which something was seen, or empty for nobody's.
    """

    def logins(self) -> Sequence[Login]:
        """Return all registries that were added, by host, then project."""
        ...

    def locked_login(self, login_id: str) -> Mapping[str, bytes]:
        """Return the secret of a login as the vault locked it; empty: it has none, or is gone."""
        ...

    def save_login(self, login: Login, locked: Mapping[str, bytes]) -> None:
        """Add a login, in the place of the one for the same host and project."""
        ...

    def drop_login(self, host: str, project: str) -> Login | None:
        """Forget a login with its secret, and return it."""
        ...

    def mirrored(self, scope: str, image: Image) -> Mirrored | None:
        """Return what is kept of a manifest, by tag or digest."""
        ...

    def keep_mirrored(self, scope: str, image: Image, found: Mirrored) -> None:
        """Keep a manifest under a tag or digest."""
        ...

    def mirrored_blob(self, scope: str, host: str, name: str, digest: str) -> datetime | None:
        """Return when a blob was last used under a login; none: it was not seen under it."""
        ...

    def was_mirrored(self, host: str, name: str, digest: str) -> bool:
        """Say whether a blob was had from a place, under any login."""
        ...

    def keep_mirrored_blob(
        self, scope: str, host: str, name: str, digest: str, now: datetime
    ) -> None:
        """Note that a blob may be had under a login, and is used now."""
        ...

    def forget_mirrored(self, before: datetime, limit: int) -> int:
        """Forget manifests and blobs that were not used since; at most so many of each."""
        ...


class Projects(Protocol):
    """The part of a transaction that projects and tokens see."""

    def last_peak(self, project: str) -> int | None:
        """Return the memory that the project's last build took that says so; none: none does."""
        ...

    def project(self, name: str) -> StoredProject | None:
        """Return one project."""
        ...

    def projects_page(self, limit: int, after: str, only: str | None) -> Sequence[StoredProject]:
        """Return projects by name, beyond `after`, with how many builds they had."""
        ...

    def removing(self) -> Sequence[str]:
        """Return the projects whose removal was begun."""
        ...

    def save_project(self, project: StoredProject) -> None:
        """Add a project, or store one that was changed."""
        ...

    def contents(self, project: str) -> Contents:
        """Count what a project has."""
        ...

    def purge_project(self, project: str, limit: int) -> tuple[bool, Sequence[str]]:
        """Delete some of what a project had; say whether more is left, and which builds went."""
        ...

    def environment(self, project: str, name: str) -> StoredEnvironment | None:
        """Return one environment."""
        ...

    def environments_page(
        self, project: str, limit: int, after: str
    ) -> Sequence[StoredEnvironment]:
        """Return environments by name, beyond `after`, with how many builds they had."""
        ...

    def save_environment(self, environment: StoredEnvironment) -> None:
        """Add an environment, or store one that was changed."""
        ...

    def drop_environment(self, project: str, name: str) -> None:
        """Forget an environment; its builds stay."""
        ...

    def open_builds(self, project: str, environment: str) -> int:
        """Return how many builds of an environment wait or run."""
        ...

    def credential(self, token_id: str) -> Credential | None:
        """Return one token."""
        ...

    def credential_by_hash(self, token_hash: str) -> Credential | None:
        """Return the token whose hash begins as this one does; the caller compares the whole."""
        ...

    def credential_by_key(self, project: str | None, key: str) -> Credential | None:
        """Return the token that was made under a key."""
        ...

    def credentials_page(
        self, project: str | None, limit: int, before: int | None
    ) -> Sequence[tuple[int, Credential]]:
        """Return tokens of a project (none: the owner's), newest first, each with its number."""
        ...

    def save_credential(self, credential: Credential) -> None:
        """Add a token, or store one that was changed."""
        ...

    def revoke_credentials(self, project: str, environment: str | None, now: datetime) -> int:
        """Revoke all tokens of a project, or of one environment; return how many lived."""
        ...

    def forget_credentials(self, project: str | None, dead_before: datetime) -> None:
        """Forget tokens that were revoked or ended before."""
        ...

    def note_uses(self, uses: Mapping[str, datetime]) -> None:
        """Store when tokens were last used."""
        ...


class Ledger(Images, Mirror, Projects, Protocol):
    """One transaction over everything that the router keeps in its database."""

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

    def queued(self) -> Sequence[StoredBuild]:
        """Return builds that wait for a runner, oldest first: never a parent."""
        ...

    def queue_length(self) -> int:
        """Return how many builds wait for a runner."""
        ...

    def leased(self) -> Sequence[StoredBuild]:
        """Return builds that a runner has: never a parent."""
        ...

    def add_event(
        self, build_id: str, *, fence: int, log_size: int, kind: str, payload: bytes
    ) -> None:
        """Add an event after all others of its build."""
        ...

    def events(self, build_id: str, after: int) -> Sequence[StoredEvent]:
        """Return the events of a build after one."""
        ...

    def runners(self) -> Sequence[StoredRunner]:
        """Return all runners, by name."""
        ...

    def runner(self, name: str) -> StoredRunner | None:
        """Return one runner."""
        ...

    def save_runner(self, runner: StoredRunner) -> None:
        """Add a runner, or store one that was changed."""
        ...

    def delete_runner(self, name: str) -> None:
        """Forget a runner, and the join codes that would bring it back."""
        ...

    def code(self, secret_hash: str) -> Code | None:
        """Return a join code."""
        ...

    def save_code(self, secret_hash: str, code: Code) -> None:
        """Add a join code, or store one that was used."""
        ...

    def runner_by_credential(self, credential_hash: str) -> StoredRunner | None:
        """Return the runner whose hash begins as this one does; the caller compares the whole."""
        ...

    def context(self, project: str, digest: str) -> ContextRef | None:
        """Return a context of a project; none: the project has no such context."""
        ...

    def save_context(self, project: str, context: ContextRef, now: datetime) -> None:
        """Add a context, or say that it is used now."""
        ...

    def forget_contexts(self, before: datetime) -> Sequence[tuple[str, str]]:
        """Forget contexts that were not used since and that no open build needs; return them."""
        ...

    def alive_at(self) -> datetime | None:
        """Return when the control plane last accepted heartbeats."""
        ...

    def mark_alive(self, now: datetime) -> None:
        """Say that heartbeats are accepted now."""
        ...


class Store(Protocol):
    """Runs functions over the ledger."""

    async def write(self, operation: Callable[[Ledger], T]) -> T:
        """Run it in a transaction that is on the disk when this returns."""
        ...

    async def read(self, operation: Callable[[Ledger], T]) -> T:
        """Run it on the last committed state."""
        ...


class Logs(Protocol):
    """The logs of attempts, as bytes."""

    async def append(self, build_id: str, fence: int, offset: int, data: bytes) -> None:
        """Store bytes at the end of a log for good; `offset` is where the log ends."""
        ...

    def begin(self, build_id: str, fence: int, note: bytes) -> None:
        """Begin a log with bytes of the router's own."""
        ...

    def size(self, build_id: str, fence: int) -> int:
        """Return how many bytes are stored."""
        ...

    async def read(self, build_id: str, fence: int, offset: int, limit: int) -> bytes:
        """Return stored bytes; fewer than `limit` at the end."""
        ...

    async def hide(self, build_id: str, fence: int, offset: int, length: int) -> None:
        """Write stars over stored bytes."""
        ...

    async def drop(self, build_id: str) -> None:
        """Delete the logs of a build; those that are not there are no error."""
        ...

    def untouched(self, before: float) -> Sequence[str]:
        """Return the builds to whose logs nothing was added since; seconds since the epoch."""
        ...


class Vault(Protocol):
    """Keeps secrets unreadable while they wait, and seals them for whoever may have them."""

    def lock(self, build_id: str, values: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return each value encrypted, bound to its build and its name."""
        ...

    def unlock(self, build_id: str, locked: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the values again.

        Raises:
            SecretsLost: they were locked with another key, for another build, or were changed.
        """
        ...

    def mac(self, build_id: str, values: Mapping[str, bytes]) -> str:
        """Return what tells two sets of values apart, and gives nothing away without the key."""
        ...

    def seal(
        self, values: Mapping[str, bytes], *, recipient: bytes, build_id: str, fence: int
    ) -> Sealed:
        """Return the values for one attempt, readable by one session only."""
        ...

    def usable(self, public_key: bytes) -> bool:
        """Say whether anything can be sealed to a key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A registry to ask, and as whom.

    `allowed`: hosts that may be asked though they are in a private network.
    """

    host: str
    scope: str = ""
    username: str | None = None
    secret: str | None = field(default=None, repr=False)
    plain_http: bool = False
    ca: str | None = None
    allowed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamBlob:
    """The bytes of a blob as they come; `size_bytes` none: it was not said."""

    size_bytes: int | None
    chunks: AsyncIterator[bytes]


class Upstreams(Protocol):
    """Registries of others. What they send was not checked but for its size.

    Every call raises the `Upstream` errors of `domain.errors`, and `HostNotAllowed`.
    """

    async def try_login(self, upstream: Upstream) -> LoginKind:
        """Log in, and return how; `open`: nobody was asked for a login."""
        ...

    async def digest(self, upstream: Upstream, image: Image) -> str | None:
        """Return what a manifest's digest is said to be; none: that is not said."""
        ...

    async def manifest(self, upstream: Upstream, image: Image) -> tuple[str, bytes, str | None]:
        """Return the media type, the bytes, and the digest that they are said to have."""
        ...

    async def blob_size(self, upstream: Upstream, name: str, digest: str) -> int | None:
        """Return the size of a blob that may be had; none: it is there, and that is not said."""
        ...

    def blob(
        self, upstream: Upstream, name: str, digest: str
    ) -> AbstractAsyncContextManager[UpstreamBlob]:
        """Give a blob."""
        ...


@dataclass(frozen=True, slots=True)
class Archive:
    """The tar.zst of a context: parts, one after the other. `tag` names these very bytes."""

    parts: Sequence[Stretch | bytes]
    tag: str


class ContextStore(Protocol):
    """What is in contexts. What one project has is not there for another."""

    async def keep(self, project: str, body: AsyncIterator[bytes]) -> int:
        """Keep the objects of a body and return how many came; after a cut, those before it."""
        ...

    async def lacking(self, project: str, digests: Sequence[bytes]) -> list[bytes]:
        """Return which objects the project does not have, in order and once each."""
        ...

    async def read(self, project: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return small objects; those that are gone are left out."""
        ...

    async def sealed(self, project: str, digests: Sequence[bytes]) -> dict[bytes, SealedPage]:
        """Return the pages whose part of the archive is made."""
        ...

    async def seal(self, project: str, pages: Sequence[NewPage]) -> None:
        """Make the parts of the archive for pages all of whose objects are there."""
        ...

    async def save(self, project: str, digest: str, pages: bytes) -> None:
        """Remember which pages a context has, all of them sealed."""
        ...

    async def archive(self, project: str, digest: str) -> Archive | None:
        """Return the archive of a context; none: it is not there."""
        ...

    async def forget(self, project: str, digest: str) -> None:
        """Forget a context."""
        ...

    async def forget_project(self, project: str) -> None:
        """Remove all that a project has."""
        ...

    async def sweep(self) -> None:
        """Remove what nothing needs."""
        ...


class Incoming(Protocol):
    """Where a tar is while it is looked at."""

    def tar(self, body: AsyncIterator[bytes]) -> AbstractAsyncContextManager[BinaryIO]:
        """Give a body, plain or as gzip or zstd, as a plain tar that can be read twice.

        Raises:
            Invalid: it is too large, or damaged.
        """
        ...


class Clock(Protocol):
    """The wall clock, in UTC."""

    def now(self) -> datetime:
        """Return the time."""
        ...


class Entropy(Protocol):
    """Where ids and secrets come from."""

    def id(self, prefix: str) -> str:
        """Return a short id with a prefix, like `b_7f3kq2`."""
        ...

    def secret(self) -> str:
        """Return 256 random bits as text."""
        ...
