"""Fakes of the runner's ports, for tests of the engine and of whatever else drives it.

They keep the rules of the ports: replies can be lost, a backend ends at once when it is cancelled,
and everything that was called is written down.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import PierheadError, Refused, Unavailable
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
from pierhead.protocol.problem import problem
from pierhead.protocol.result import (
    CacheUse,
    Envelope,
    ImageConfig,
    PlatformImage,
    Receipt,
    StopProof,
)
from pierhead.protocol.runner import Capabilities, Isolation, Session
from pierhead.runner.ports import (
    Broken,
    BuildOrder,
    Built,
    Group,
    Hold,
    KeepGroup,
    LogSink,
    Pushed,
)

NOWHERE = digest_of(b"")


def away() -> Unavailable:
    """Return the error of a router that does not answer."""
    return Unavailable(problem("dependency-unavailable", "the router is away"))


def grant(build_id: str = "b_one", fence: int = 1) -> Grant:
    """Return a grant of an empty context."""
    return Grant(
        build_id=build_id,
        fence=fence,
        token="secret",  # noqa: S106 - a fake's
        project="demo",
        plan=Plan(),
        context=ContextRef(digest=NOWHERE, size_bytes=1, unpacked_bytes=0, files=0),
        repository="demo",
        lease_ttl_ms=20_000,
        renew_in_ms=6_000,
    )


def built(layout: Path) -> Built:
    """Return an image without layers."""
    manifest = b"{}"
    image = BuiltImage(
        manifest=manifest,
        media_type="application/vnd.oci.image.manifest.v1+json",
        platform=PlatformImage(
            platform="linux/amd64",
            manifest_digest=digest_of(manifest),
            config_digest=NOWHERE,
            size_bytes=0,
            layers=(),
        ),
        config=ImageConfig(),
    )
    return Built(layout=layout, image=image, cache=CacheUse(), peak_memory_bytes=None)


@dataclass
class FakeHold:
    """An attempt's calls. `failing` holds errors by the name of a call, each raised once."""

    wanted: Grant
    failing: dict[str, deque[PierheadError]] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    log: bytearray = field(default_factory=bytearray)
    envelopes: list[Envelope] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    pushing: asyncio.Event | None = None  # when there is one, a push waits for it
    fetching: asyncio.Event | None = None
    values: Mapping[str, bytes] = field(default_factory=dict)  # of its secrets

    def _tell(self, call: str, what: str = "") -> None:
        self.story.append(f"{call} {what}".strip())
        if self.failing.get(call):
            raise self.failing[call].popleft()

    async def context(self, offset: int) -> AsyncIterator[bytes]:
        """Yield nothing."""
        self._tell("context", str(offset))
        if self.fetching is not None:
            await self.fetching.wait()
        yield b""

    async def secrets(self) -> Mapping[str, bytes]:
        """Return the secrets that were set."""
        self._tell("secrets")
        return self.values

    def bases(self) -> None:
        """Leave base images to the backend."""

    async def enter(self, phase: Phase) -> bool:
        """Write the phase down."""
        self._tell("enter", phase)
        return self.cancelled.is_set()

    async def signals(self) -> Signals:
        """Wait for the wish to cancel."""
        self._tell("signals")
        await self.cancelled.wait()
        return Signals(cancel_requested=True)

    async def append_log(self, offset: int, data: bytes) -> LogAccepted:
        """Store the bytes; what comes at another place is refused as the router does."""
        self._tell("append_log")
        if offset != len(self.log):
            raise Refused(problem("offset-mismatch", "elsewhere", next_offset=len(self.log)))
        self.log += data
        return LogAccepted(next_offset=len(self.log))

    async def push(self, image: Built) -> Pushed:
        """Take an image."""
        self._tell("push", image.image.platform.manifest_digest)
        if self.pushing is not None:
            await self.pushing.wait()
        return Pushed(sent_bytes=1, present_bytes=0, sent_layers=1)

    async def release(self, reason: ReleaseReason, detail: str) -> None:
        """Take the build back."""
        self._tell("release", f"{reason} {detail}")

    async def report(self, envelope: Envelope) -> Receipt:
        """Take the result."""
        self._tell("report", f"{envelope.outcome} after {len(self.log)} bytes of log")
        self.envelopes.append(envelope)
        return Receipt(
            build_id=self.wanted.build_id, fence=self.wanted.fence, state=envelope.outcome
        )

    async def close(self) -> None:
        """Write it down."""
        self.story.append("close")


@dataclass
class FakeControl:
    """A router that answers from a list; when it is empty, it holds the request."""

    answers: deque[Acquired | PierheadError] = field(default_factory=deque)
    sessions: deque[PierheadError] = field(default_factory=deque)
    able: list[Capabilities] = field(default_factory=list)  # of each session that was opened
    ended: list[tuple[str, int]] = field(default_factory=list)  # and how often it had asked
    deaf: bool = False  # to goodbyes
    asked: list[Acquire] = field(default_factory=list)
    holds: dict[tuple[str, int], FakeHold] = field(default_factory=dict)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, *answers: Acquired | PierheadError) -> None:
        """Let a request that is held have these answers."""
        self.answers.extend(answers)
        self.more.set()

    async def open_session(self, process: str, capabilities: Capabilities) -> Session:
        """Open a session, after the errors that were set."""
        if self.sessions:
            raise self.sessions.popleft()
        self.able.append(capabilities)
        return Session(session_id="s_1", lease_ttl_ms=20_000, renew_in_ms=6_000, hold_ms=25_000)

    async def acquire(self, request: Acquire) -> Acquired:
        """Write the request down; answer when there is an answer."""
        self.asked.append(request)
        self.heard.set()
        while not self.answers:
            self.more.clear()
            await self.more.wait()
        answer = self.answers.popleft()
        if isinstance(answer, PierheadError):
            raise answer
        return answer

    async def release_session(self, session_id: str) -> None:
        """Write the goodbye down; a router that is away does not hear it."""
        if self.deaf:
            raise away()
        self.ended.append((session_id, len(self.asked)))

    def attempt(self, wanted: Grant) -> Hold:
        """Return the attempt's calls, which a test may have prepared."""
        return self.hold(wanted)

    def hold(self, wanted: Grant) -> FakeHold:
        """Return the fake for a grant."""
        return self.holds.setdefault((wanted.build_id, wanted.fence), FakeHold(wanted))


@dataclass
class FakeBackend:
    """Builds when it is let; `outcome` is an image, a failure, or an error to raise."""

    outcome: Built | Broken | Exception
    slots: int = 2
    isolation: Isolation = "full"
    gate: asyncio.Event | None = None  # when there is one, a build waits for it
    stopping: asyncio.Event | None = None
    output: bytes = b"STEP 1/1: FROM scratch\n"
    begun: list[str] = field(default_factory=list)
    secrets: list[Mapping[str, bytes]] = field(default_factory=list)  # of each build
    stopped: list[str] = field(default_factory=list)
    swept: int = 0

    async def probe(self) -> Capabilities:
        """Say that everything is possible."""
        return Capabilities(
            platforms=("linux/amd64",),
            backend="fake",
            isolation=self.isolation,
            networks=("default", "none"),
            cpus=1,
            memory_bytes=1,
            slots=self.slots,
            limits={} if self.slots else {"backend": "fake builds nothing"},
        )

    async def lend(self, order: BuildOrder) -> None:
        """Have nothing to lend."""

    async def build(self, order: BuildOrder, log: LogSink, keep: KeepGroup) -> Built | Broken:
        """Write the output, wait, end."""
        self.begun.append(order.name)
        self.secrets.append(order.secrets)
        keep(Group(name=order.name, pid=1, cgroups=()))
        log(self.output)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def stop(self, order: BuildOrder) -> StopProof:
        """Leave nothing."""
        if self.stopping is not None:
            await self.stopping.wait()
        self.stopped.append(order.name)
        return StopProof()

    async def sweep(self) -> StopProof:
        """Count."""
        self.swept += 1
        return StopProof()


@dataclass
class FakeGround:
    """A folder with room, until a test says otherwise, or takes it away."""

    lacking: str | None = None
    gone: bool = False

    def lack(self) -> str | None:
        """Say what the test said."""
        if self.gone:
            raise Unavailable(problem("dependency-unavailable", "the folder is gone"))
        return self.lacking


@dataclass
class FakeKeeper:
    """Holds leases that are lost or cancelled when a test says so."""

    held: dict[str, Grant] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    lost: dict[str, Callable[[str], None]] = field(default_factory=dict)
    cancel: dict[str, Callable[[], None]] = field(default_factory=dict)

    def hold(self, wanted: Grant, lost: Callable[[str], None], cancel: Callable[[], None]) -> None:
        """Write the lease down."""
        self.held[wanted.build_id] = wanted
        self.lost[wanted.build_id], self.cancel[wanted.build_id] = lost, cancel

    def keep(self, group: Group) -> None:
        """Write the group down."""
        self.groups.append(group)

    def drop(self, build_id: str) -> None:
        """Forget the lease."""
        self.held.pop(build_id, None)
