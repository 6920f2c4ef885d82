"""Fakes of the runner's ports, for tests of the engine and of whatever else drives it.

They keep the rules of the ports: replies can be lost, a backend ends at once when it is cancelled,
and everything that was called is written down. The suites that are asked of the real things are
asked of them too; what a fake lets pass, the real thing has to let pass.
"""

import asyncio
import contextlib
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import (
    IntegrityError,
    Invalid,
    LeaseLost,
    PierheadError,
    Refused,
    Unavailable,
)
from pierhead.protocol.image import read_image
from pierhead.protocol.lease import (
    Acquire,
    Acquired,
    Grant,
    Held,
    LogAccepted,
    Phase,
    ReleaseReason,
    Signals,
)
from pierhead.protocol.plan import ContextRef, Plan
from pierhead.protocol.problem import problem
from pierhead.protocol.redact import Patterns, Redactor
from pierhead.protocol.result import (
    CacheUse,
    Envelope,
    Failure,
    Outcome,
    Receipt,
    StopProof,
)
from pierhead.protocol.runner import Capabilities, Isolation, Session
from pierhead.runner.domain.bases import BaseRefusal
from pierhead.runner.domain.failure import Disk
from pierhead.runner.ports import (
    BaseAnswer,
    BaseAsk,
    Broken,
    BuildOrder,
    Built,
    Group,
    Hold,
    KeepGroup,
    LogSink,
    Pushed,
)

CONTEXT: Final = b"FROM scratch\n"
ROOMY: Final = Disk("/work", 10**12, 10**12)
# Beyond what Linux gives out (PID_MAX_LIMIT), so that nobody is killed who happens to have it.
NO_PROCESS: Final = 2**22 + 1
# Calls one after the other that bring nothing.
CUTS_MAX: Final = 60
PART_BYTES: Final = 256 * 1024  # as much as one request may hold


def away() -> Unavailable:
    """Return the error of a router that does not answer."""
    return Unavailable(problem("dependency-unavailable", "the router is away"))


def grant(build_id: str = "b_one", fence: int = 1) -> Grant:
    """Return a grant of a context with one file."""
    return Grant(
        build_id=build_id,
        fence=fence,
        token="secret",  # noqa: S106 - a fake's
        project="demo",
        plan=Plan(),
        context=reference(CONTEXT),
        repository="demo",
        lease_ttl_ms=20_000,
        renew_in_ms=6_000,
    )


def reference(context: bytes) -> ContextRef:
    """Return what names a context to `FakeWorkspace`: it is its Dockerfile, and not packed."""
    size = len(context)
    return ContextRef(digest=digest_of(context), size_bytes=size, unpacked_bytes=size, files=1)


LAYER: Final = b"hello"  # not a tar: nothing here unpacks it
_KIND: Final = "application/vnd.oci.image"


def built(layout: Path) -> Built:
    """Write an image of one layer as an OCI layout, and return it."""
    config = msgspec.json.encode(
        {
            "os": "linux",
            "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": [digest_of(LAYER)]},
        }
    )
    manifest = msgspec.json.encode(
        {
            "schemaVersion": 2,
            "mediaType": f"{_KIND}.manifest.v1+json",
            "config": _described(f"{_KIND}.config.v1+json", config),
            "layers": [_described(f"{_KIND}.layer.v1.tar", LAYER)],
        }
    )
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for blob in (LAYER, config, manifest):
        (blobs / digest_of(blob).removeprefix("sha256:")).write_bytes(blob)
    described = _described(f"{_KIND}.manifest.v1+json", manifest)
    index = {"schemaVersion": 2, "manifests": [described]}
    (layout / "index.json").write_bytes(msgspec.json.encode(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    image = read_image(manifest, config)
    return Built(layout=layout, image=image, cache=CacheUse(), peak_memory_bytes=None)


def _described(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest_of(blob), "size": len(blob)}


@dataclass
class FakeHold:
    """An attempt's calls. `failing` holds errors by the name of a call, each raised once.

    `log` and `pushed` are what the router has; an attempt that is `lost` gets refusals alone.
    """

    wanted: Grant
    failing: dict[str, deque[PierheadError]] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    packed: bytes = CONTEXT
    log: bytearray = field(default_factory=bytearray)
    pushed: set[str] = field(default_factory=set)  # digests
    envelopes: list[Envelope] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    pushing: asyncio.Event | None = None  # when there is one, a push waits for it
    fetching: asyncio.Event | None = None
    values: Mapping[str, bytes] = field(default_factory=dict)  # of its secrets

    def _tell(self, call: str, what: str = "") -> None:
        self.story.append(f"{call} {what}".strip())
        if self.failing.get(call):
            raise self.failing[call].popleft()
        if self.lost:
            raise LeaseLost(problem("lease-lost", f"attempt {self.wanted.fence} is over"))

    async def context(self, offset: int) -> AsyncIterator[bytes]:
        """Yield the context, from a place on."""
        self._tell("context", str(offset))
        if self.fetching is not None:
            await self.fetching.wait()
        if offset < len(self.packed):
            yield self.packed[offset:]

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
        """Store what is new of the bytes; a gap before them is refused."""
        self._tell("append_log")
        if len(data) > PART_BYTES:
            raise Invalid(problem("too-large", f"a part is at most {PART_BYTES} bytes"))
        if offset > len(self.log):
            raise Refused(problem("offset-mismatch", "elsewhere", next_offset=len(self.log)))
        self.log += data[len(self.log) - offset :]
        return LogAccepted(next_offset=len(self.log), cancel_requested=self.cancelled.is_set())

    async def push(self, image: Built) -> Pushed:
        """Take what is not there of an image that is on the disk."""
        self._tell("push", image.image.platform.manifest_digest)
        if self.pushing is not None:
            await self.pushing.wait()
        sizes = _sizes(image)
        new = sizes.keys() - self.pushed
        self.pushed |= {*sizes, image.image.platform.manifest_digest}
        return Pushed(
            sent_bytes=sum(sizes[digest] for digest in new),
            present_bytes=sum(sizes[digest] for digest in sizes.keys() - new),
            sent_layers=len(new & {*image.image.platform.layers}),
        )

    async def release(self, reason: ReleaseReason, detail: str) -> None:
        """Take the build back."""
        self._tell("release", f"{reason} {detail}")
        self.lost = True

    async def report(self, envelope: Envelope) -> Receipt:
        """Take the result, and after that only the same one again."""
        what = f"{envelope.outcome} after {len(self.log)} bytes of log"
        if self.envelopes[-1:] != [envelope] or self.failing.get("report"):
            self._tell("report", what)
            self._check(envelope)
            self.envelopes.append(envelope)
        self.lost = True
        state: Outcome = "cancelled" if self.cancelled.is_set() else envelope.outcome
        return Receipt(build_id=self.wanted.build_id, fence=self.wanted.fence, state=state)

    def _check(self, envelope: Envelope) -> None:
        """Refuse what cannot be; the build ends with it.

        Raises:
            IntegrityError: its image was not pushed, or it was cancelled by nobody.
        """
        pushed = envelope.outcome != "succeeded" or envelope.manifest_digest in self.pushed
        wished = envelope.outcome != "cancelled" or self.cancelled.is_set()
        if not (pushed and wished):
            self.lost = True
            raise IntegrityError(problem("result-mismatch", "that is not true"))

    async def close(self) -> None:
        """Write it down."""
        self.story.append("close")


def _sizes(image: Built) -> dict[str, int]:
    """Return the sizes of the blobs of an image, by digest."""
    platform = image.image.platform
    blobs = image.layout / "blobs"
    return {
        digest: (blobs / digest.replace(":", "/", 1)).stat().st_size
        for digest in (platform.config_digest, *platform.layers)
    }


@dataclass
class FakeControl:
    """A router that answers from a list; when it has nothing for a request, it holds it."""

    answers: deque[Acquired | PierheadError] = field(default_factory=deque)
    sessions: deque[PierheadError] = field(default_factory=deque)
    processes: list[str] = field(default_factory=list)  # each took over from the one before
    able: list[Capabilities] = field(default_factory=list)  # of each session that was opened
    ended: list[tuple[str, int]] = field(default_factory=list)  # and how often it had asked
    deaf: bool = False  # to goodbyes
    asked: list[Acquire] = field(default_factory=list)
    answered: dict[str, Acquired] = field(default_factory=dict)  # by the request
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
        if self.processes[-1:] != [process]:
            self.processes.append(process)
        session_id = f"s_{len(self.processes)}"
        return Session(
            session_id=session_id, lease_ttl_ms=20_000, renew_in_ms=6_000, hold_ms=25_000
        )

    async def acquire(self, request: Acquire) -> Acquired:
        """Write the request down; answer when there is an answer, a repeat as before."""
        over = [session_id for session_id, _ in self.ended]
        if request.session_id != f"s_{len(self.processes)}" or request.session_id in over:
            raise Refused(problem("session-superseded", "this process is not at work any more"))
        self.asked.append(request)
        self.heard.set()
        if request.request_id in self.answered:
            return self.answered[request.request_id]
        if drop := tuple(one for one in request.held if self._is_lost(one)):
            return Acquired(drop=drop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.hold_ms / 1000):
                while not self._fits(request):
                    self.more.clear()
                    await self.more.wait()
        if not self._fits(request):
            return Acquired()
        answer = self.answers.popleft()
        if isinstance(answer, PierheadError):
            raise answer
        self.answered[request.request_id] = answer
        return answer

    def _fits(self, request: Acquire) -> bool:
        """Say whether there is an answer that gives no more than was asked for."""
        if not self.answers:
            return False
        answer = self.answers[0]
        return isinstance(answer, PierheadError) or len(answer.grants) <= request.slots

    def _is_lost(self, held: Held) -> bool:
        known = self.holds.get((held.build_id, held.fence))
        return known is not None and known.lost

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
    """Builds the same image each time, when it is let; or fails, or raises, as `outcome` says.

    It insists on what the port asks of whoever calls it: one build in a slot.
    """

    outcome: Broken | Exception | None = None
    slots: int = 2
    isolation: Isolation = "full"
    gate: asyncio.Event | None = None  # when there is one, a build waits for it
    stopping: asyncio.Event | None = None
    output: bytes = b"STEP 1/1: FROM scratch\n"
    begun: list[str] = field(default_factory=list)
    secrets: list[Mapping[str, bytes]] = field(default_factory=list)  # of each build
    stopped: list[str] = field(default_factory=list)
    swept: int = 0
    lacking: str | None = None  # until it is asked what it can do
    occupied: dict[int, str] = field(default_factory=dict)  # slots, by whom, until it is stopped
    running: set[str] = field(default_factory=set)
    kept: dict[tuple[int, str, bool], dict[str, bytes]] = field(default_factory=dict)  # contexts

    async def probe(self) -> Capabilities:
        """Say that everything is possible."""
        self.lacking = None
        return Capabilities(
            platforms=("linux/amd64",),
            backend="fake",
            isolation=self.isolation,
            networks=("default", "none") if self.isolation == "full" else ("default",),
            cpus=1,
            memory_bytes=1,
            slots=self.slots,
            limits={} if self.slots else {"backend": "fake builds nothing"},
        )

    def lack(self) -> str | None:
        """Say what the test said."""
        return self.lacking

    async def lend(self, order: BuildOrder) -> None:
        """Write down what the project's last build in the slot had."""
        for name, content in self.kept.pop(_home(order), {}).items():
            (order.context / name).parent.mkdir(parents=True, exist_ok=True)
            (order.context / name).write_bytes(content)

    async def build(self, order: BuildOrder, log: LogSink, keep: KeepGroup) -> Built | Broken:
        """Write the output, wait, end."""
        occupant = self.occupied.setdefault(order.slot, order.name)
        assert occupant == order.name, f"{order.name} in the slot of {occupant}"
        self.begun.append(order.name)
        self.secrets.append(order.secrets)
        self.running.add(order.name)
        try:
            keep(Group(name=order.name, pid=NO_PROCESS, cgroups=()))
            redactor = Redactor(Patterns(order.secrets.values()))
            log(redactor.feed(self.output) + redactor.finish())
            async with asyncio.timeout(order.plan.timeout_seconds):
                if self.gate is not None:
                    await self.gate.wait()
        except TimeoutError:
            failure = Failure(cause="time", message="it took longer than it may take")
            return Broken(failure=failure, cache=CacheUse(), peak_memory_bytes=None)
        finally:
            self.running.discard(order.name)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome or built(order.work / "layout")

    async def stop(self, order: BuildOrder) -> StopProof:
        """Leave nothing but what is lent to the next build."""
        if self.stopping is not None:
            await self.stopping.wait()
        if order.context.is_dir():
            files = (path for path in order.context.rglob("*") if path.is_file())
            content = {str(path.relative_to(order.context)): path.read_bytes() for path in files}
            self.kept[_home(order)] = content
        shutil.rmtree(order.work, ignore_errors=True)
        if self.occupied.get(order.slot) == order.name:
            del self.occupied[order.slot]
        self.stopped.append(order.name)
        return StopProof()

    async def sweep(self) -> StopProof:
        """Empty the slots, and count."""
        self.occupied.clear()
        self.swept += 1
        return StopProof()


def _home(order: BuildOrder) -> tuple[int, str, bool]:
    return order.slot, order.project, order.preview


@dataclass
class FakeSpool:
    """A log in memory, sent as it comes."""

    hold: Hold
    data: bytearray = field(default_factory=bytearray)
    sent: int = 0
    closed: bool = False
    more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.data)

    @property
    def digest(self) -> str:
        """The digest of all of it."""
        return digest_of(bytes(self.data))

    def write(self, data: bytes) -> None:
        """Take output."""
        self.data += data
        self.more.set()

    def close(self) -> None:
        """End it."""
        self.closed = True
        self.more.set()

    async def send(self) -> None:
        """Send all of it, from where the router says that it goes on."""
        while not (self.closed and self.sent == self.size):
            if self.sent == self.size:
                self.more.clear()
                await self.more.wait()
            elif (following := await self._send_part()) is not None:
                self.sent = following

    async def _send_part(self) -> int | None:
        """Return where the log goes on; none: the router is away."""
        part = bytes(self.data[self.sent : self.sent + PART_BYTES])
        try:
            return (await self.hold.append_log(self.sent, part)).next_offset
        except Unavailable:
            await asyncio.sleep(0)
            return None
        except Refused as refused:
            if refused.problem.next_offset is None:
                raise
            return refused.problem.next_offset


@dataclass
class FakeWorkspace:
    """A folder whose context is one Dockerfile, on a disk that is as full as a test says."""

    folder: Path
    disks: Mapping[str, Disk] = field(default_factory=dict)  # by the name of the folder
    spooled: list[FakeSpool] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    async def fetch(self, hold: Hold, wanted: ContextRef) -> Path:
        """Write down the context, if it is what was wanted."""
        content = await _whole(hold, wanted.size_bytes)
        if digest_of(content) != wanted.digest:
            raise IntegrityError(problem("digest-mismatch", "the context is another one"))
        root = self.folder / "context"
        shutil.rmtree(root, ignore_errors=True)  # what was lent
        root.mkdir()
        (root / "Dockerfile").write_bytes(content)
        return root

    def spool(self, hold: Hold) -> FakeSpool:
        """Begin the log."""
        self.spooled.append(FakeSpool(hold))
        return self.spooled[-1]

    def disk(self) -> Disk:
        """Say what the test said, while the folder is there."""
        self.folder.stat()
        return self.disks.get(self.folder.name, ROOMY)

    async def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


async def _whole(hold: Hold, size: int) -> bytes:
    """Return a context; after a cut, the rest of it is asked for."""
    content, cuts = b"", 0
    while True:
        before = len(content)
        try:
            async for chunk in hold.context(len(content)):
                content += chunk
                if len(content) > size:
                    detail = f"the context does not end after {size} bytes"
                    raise IntegrityError(problem("digest-mismatch", detail))
            return content
        except Unavailable:
            cuts += len(content) == before
            if cuts > CUTS_MAX:
                raise
            await asyncio.sleep(0)


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
    """Holds leases that are lost, or whose builds should end, when a test says so."""

    held: dict[str, Grant] = field(default_factory=dict)
    groups: dict[str, list[Group]] = field(default_factory=dict)  # of what is held, by its build
    killed: list[Group] = field(default_factory=list)
    lost: dict[str, Callable[[str], None]] = field(default_factory=dict)  # to be called, once
    cancel: dict[str, Callable[[], None]] = field(default_factory=dict)

    def hold(self, wanted: Grant, lost: Callable[[str], None], cancel: Callable[[], None]) -> None:
        """Write the lease down, in the place of an older one."""
        build_id = wanted.build_id
        self.held[build_id], self.groups[build_id] = wanted, []
        self.lost[build_id], self.cancel[build_id] = lost, cancel

    def keep(self, group: Group) -> None:
        """Write the group down, if its build is held."""
        self.groups.get(group.name.rpartition(".")[0], []).append(group)

    def drop(self, build_id: str) -> None:
        """Forget the lease; nothing is told of it any more."""
        for known in (self.held, self.groups, self.lost, self.cancel):
            known.pop(build_id, None)

    def lose(self, build_id: str, reason: str) -> None:
        """Let a lease be lost: its processes are killed, and then the runner hears of it."""
        self.cancel.pop(build_id, None)
        tell = self.lost.pop(build_id, None)
        if tell is not None:
            self.killed += self.groups[build_id]
            tell(reason)

    def wish(self, build_id: str) -> None:
        """Let the router say, once more, that a build should end."""
        tell = self.cancel.pop(build_id, None)
        if tell is not None:
            tell()


@dataclass
class FakeBases:
    """The base images that a test says, by host, name and reference; `says` may answer instead."""

    manifests: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    blobs: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    stale_since: str | None = None
    says: Callable[[BaseAsk], BaseAnswer] | None = None
    asked: list[BaseAsk] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def ask(self, wanted: BaseAsk) -> AsyncIterator[BaseAnswer]:
        """Write the question down, and answer."""
        self.asked.append(wanted)
        yield self.says(wanted) if self.says is not None else self._found(wanted)

    def _found(self, wanted: BaseAsk) -> BaseAnswer:
        known = self.manifests if wanted.kind == "manifests" else self.blobs
        found = known.get((wanted.host, wanted.name, wanted.reference))
        image = f"{wanted.host}/{wanted.name}"
        if found is None:
            refusal = BaseRefusal(image=image, message=f"{wanted.host} has no {image}")
            return BaseAnswer(status=404, headers={}, refusal=refusal)
        headers = {"content-length": str(len(found)), "docker-content-digest": digest_of(found)}
        kind = f"{_KIND}.manifest.v1+json"
        headers["content-type"] = kind if known is self.manifests else "application/octet-stream"
        return BaseAnswer(
            status=200,
            headers=headers,
            chunks=_pieces(found if wanted.method == "GET" else b""),
            stale_since=self.stale_since if known is self.manifests else None,
        )


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), PART_BYTES):
        yield data[at : at + PART_BYTES]
