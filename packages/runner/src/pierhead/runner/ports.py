"""What the runner's engine needs from outside, in sentences."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from pierhead.protocol.image import BuiltImage
from pierhead.protocol.lease import (
    Acquire,
    Acquired,
    Grant,
    LogAccepted,
    Phase,
    ReleaseReason,
    Signals,
)
from pierhead.protocol.plan import ContextRef, Plan
from pierhead.protocol.result import CacheUse, Envelope, Failure, Receipt, StopProof
from pierhead.protocol.runner import Capabilities, Session
from pierhead.runner.domain.bases import BaseRefusal
from pierhead.runner.domain.failure import Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOrder:
    """What a backend builds, and within which limits."""

    name: str  # of the attempt, "b_7f3k.1": names its processes, cgroup and network
    slot: int
    project: str  # whose caches are used
    preview: bool = False  # shares its caches with the project's other previews only
    context: Path
    work: Path  # the layout is made here
    plan: Plan
    memory_bytes: int | None = None
    cpu_weight: int | None = None  # 1 to 10000, 100 is usual
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    bases: "Bases | None" = field(default=None, repr=False)  # none: the backend asks registries


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group and its cgroups, for whoever has to end it when the runner is gone."""

    name: str
    pid: int
    cgroups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image in an OCI layout on this machine's disk."""

    layout: Path
    image: BuiltImage
    cache: CacheUse
    peak_memory_bytes: int | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A build that failed, and what was used until then."""

    failure: Failure
    cache: CacheUse
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAsk:
    """What buildah asks of a registry for a base image."""

    method: Literal["GET", "HEAD"]
    host: str
    name: str
    kind: Literal["manifests", "blobs"]
    reference: str


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseAnswer:
    """What the control plane answers. `stale_since`: the registry itself did not, since then."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes] = field(default_factory=_nothing)
    refusal: BaseRefusal | None = None
    stale_since: str | None = None


class Bases(Protocol):
    """Where base images come from: the control plane, which has the logins."""

    def ask(self, wanted: BaseAsk) -> AbstractAsyncContextManager[BaseAnswer]:
        """Give the answer to a request.

        Raises:
            Unavailable: the control plane does not answer for a while.
            IntegrityError: a registry lied; it is not asked again. It shows while bytes come.
        """
        ...


class BuilderLostError(Exception):
    """The builder itself was killed, or did not begin. Nothing is said about the build."""


LogSink: TypeAlias = Callable[[bytes], None]
KeepGroup: TypeAlias = Callable[[Group], None]


class Backend(Protocol):
    """Builds images. Never more than one build in a slot."""

    async def probe(self) -> Capabilities:
        """Say what this machine can do."""
        ...

    def lack(self) -> str | None:
        """Say why `probe` has to be asked again before anything is built; none: it has not.

        It is quick, and asked each second.
        """
        ...

    async def lend(self, order: BuildOrder) -> None:
        """Put what an earlier build of the project had as its context where this one's will be."""
        ...

    async def build(self, order: BuildOrder, log: LogSink, keep: KeepGroup) -> Built | Broken:
        """Build. `log` gets the output as it comes, `keep` the process group as soon as it is.

        Cancelling the task ends the build at once; `stop` has to follow.

        Raises:
            BuilderLostError: it should be tried again, elsewhere.
        """
        ...

    async def stop(self, order: BuildOrder) -> StopProof:
        """Remove all that a build left, then look again and say what is still there."""
        ...

    async def sweep(self) -> StopProof:
        """At start: remove what earlier lives of this runner left."""
        ...


class Control(Protocol):
    """The router, as a runner sees it. Calls raise the errors of `pierhead.protocol.errors`."""

    async def open_session(self, process: str, capabilities: Capabilities) -> Session:
        """Begin to work."""
        ...

    async def acquire(self, request: Acquire) -> Acquired:
        """Ask for builds."""
        ...

    async def release_session(self, session_id: str) -> None:
        """Say that this process ends, and has no build any more."""
        ...

    def attempt(self, grant: Grant) -> "Hold":
        """Return the calls that the grant's token allows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What of an image went to the registry, and what was there."""

    sent_bytes: int
    present_bytes: int
    sent_layers: int


class Hold(Protocol):
    """What an attempt asks of the router."""

    def context(self, offset: int) -> AsyncIterator[bytes]:
        """Yield the packed context."""
        ...

    async def secrets(self) -> Mapping[str, bytes]:
        """Return the build's secrets.

        Raises:
            IntegrityError: what came was not sealed for this attempt.
        """
        ...

    def bases(self) -> Bases | None:
        """Return where base images come from; none: the router has no such place."""
        ...

    async def enter(self, phase: Phase) -> bool:
        """Say what is done now; true: the build should end."""
        ...

    async def signals(self) -> Signals:
        """Wait for a wish."""
        ...

    async def append_log(self, offset: int, data: bytes) -> LogAccepted:
        """Append to the log."""
        ...

    async def push(self, built: Built) -> Pushed:
        """Push an image."""
        ...

    async def release(self, reason: ReleaseReason, detail: str) -> None:
        """Give the build back."""
        ...

    async def report(self, envelope: Envelope) -> Receipt:
        """Hand in the result."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class Spool(Protocol):
    """The log of one attempt on its way to the router."""

    @property
    def size(self) -> int:
        """How many bytes it has."""
        ...

    @property
    def digest(self) -> str:
        """The digest of all of it."""
        ...

    def write(self, data: bytes) -> None:
        """Take output of the build; never waits."""
        ...

    def close(self) -> None:
        """Say that no output follows."""
        ...

    async def send(self) -> None:
        """Send until it is closed and all of it has arrived."""
        ...


class Ground(Protocol):
    """The folder below which a runner keeps all that it has."""

    def lack(self) -> str | None:
        """Say why nothing can be built there now; none: builds may come. What is missing is made.

        Raises:
            Unavailable: it is not this runner's any more.
        """
        ...


class Workspace(Protocol):
    """The folder of one attempt."""

    async def fetch(self, hold: Hold, wanted: ContextRef) -> Path:
        """Fetch, check and unpack the context; return its folder."""
        ...

    def spool(self, hold: Hold) -> Spool:
        """Begin the log."""
        ...

    def disk(self) -> Disk:
        """Look at the disk that it is on."""
        ...

    @property
    def folder(self) -> Path:
        """Where the backend may work."""
        ...

    async def remove(self) -> None:
        """Remove all of it."""
        ...


class Keeper(Protocol):
    """The process that keeps leases alive and ends builds whose runner is gone."""

    def hold(self, grant: Grant, lost: Callable[[str], None], cancel: Callable[[], None]) -> None:
        """Renew a lease from now on; tell when it is lost or the build should end."""
        ...

    def keep(self, group: Group) -> None:
        """Watch over a process group."""
        ...

    def drop(self, build_id: str) -> None:
        """Forget a build."""
        ...
