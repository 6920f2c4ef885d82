"""The result envelope: what a runner returns instead of an image."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.digest import DigestText
from pierhead.protocol.ids import Count, ShortText
from pierhead.protocol.plan import Value
from pierhead.protocol.platform import PlatformText

Outcome: TypeAlias = Literal["succeeded", "failed", "cancelled"]
Cause: TypeAlias = Literal[
    "command",  # a step of the Dockerfile ended with another code than 0
    "dockerfile",  # the Dockerfile is missing or wrong
    "out-of-memory",
    "disk-full",
    "base-image",
    "platform",
    "context",  # the context cannot be unpacked, or holds what must not be in one
    "time",
    "secret",  # the Dockerfile needs one that was not given, or those given cannot be read any more
    "runner",  # the runner itself broke; not the user's fault
    "runners-lost",  # every attempt lost its runner
    "waited-too-long",
    "no-runner",
    "integrity",
]
Fault: TypeAlias = Literal[
    "build",  # it would fail anywhere
    "runner",  # it would not fail on a better one
    "either",  # that cannot be told
]
Texts: TypeAlias = Annotated[tuple[ShortText, ...], Meta(max_length=64)]


class Failure(Struct, frozen=True, kw_only=True):
    """Why a build failed, for people: the cause, the step, and the lines that explain it."""

    cause: Cause
    message: ShortText
    step: ShortText | None = None  # "6/9 RUN pnpm build"
    exit_code: int | None = None
    extract: Texts = ()  # what the step said last
    detail: ShortText | None = None  # one more sentence: limits, numbers, what a registry said
    hint: ShortText | None = None
    fault: Fault = "build"  # whose it is: the runner's is left to others, as long as there are any


class Healthcheck(Struct, frozen=True, kw_only=True):
    """How a container is asked whether it is well. Durations in ns, as images write them."""

    test: Annotated[tuple[Value, ...], Meta(max_length=1024)] = ()
    interval_ns: Count = 0  # 0: the engine's default, as for all of them
    timeout_ns: Count = 0
    start_period_ns: Count = 0
    retries: Count = 0


class ImageConfig(Struct, frozen=True, kw_only=True):
    """The part of the image's configuration that decides how it runs (image-spec, config.md).

    Taken from the configuration blob itself, so it is what `docker inspect` says of the image.
    """

    user: Value = ""
    env: Annotated[tuple[Value, ...], Meta(max_length=1024)] = ()
    entrypoint: Annotated[tuple[Value, ...], Meta(max_length=1024)] | None = None
    cmd: Annotated[tuple[Value, ...], Meta(max_length=1024)] | None = None
    working_dir: Value = ""
    exposed_ports: Annotated[tuple[ShortText, ...], Meta(max_length=256)] = ()
    volumes: Annotated[tuple[ShortText, ...], Meta(max_length=256)] = ()
    labels: Annotated[dict[Value, Value], Meta(max_length=1024)] = {}
    stop_signal: ShortText | None = None
    healthcheck: Healthcheck | None = None
    on_build: Annotated[tuple[Value, ...], Meta(max_length=256)] = ()
    shell: Annotated[tuple[Value, ...], Meta(max_length=64)] = ()


class PlatformImage(Struct, frozen=True, kw_only=True):
    """The image for one platform."""

    platform: PlatformText
    manifest_digest: DigestText
    config_digest: DigestText
    size_bytes: Count  # of the layers, as pushed
    layers: Annotated[tuple[DigestText, ...], Meta(max_length=512)]
    diff_ids: Annotated[tuple[DigestText, ...], Meta(max_length=512)] = ()  # unpacked layers
    created: ShortText | None = None  # RFC 3339, as the image says
    author: ShortText = ""


class Timings(Struct, frozen=True, kw_only=True):
    """How long each phase took on the runner, in milliseconds."""

    fetching_ms: Count = 0
    building_ms: Count = 0
    pushing_ms: Count = 0
    total_ms: Count = 0


class CacheUse(Struct, frozen=True, kw_only=True):
    """How many steps there were, and how many of them came from the cache."""

    steps: Count = 0
    cached: Count = 0


class BytesMoved(Struct, frozen=True, kw_only=True):
    """What went over the network for this build."""

    context_bytes: Count = 0
    pushed_bytes: Count = 0
    present_bytes: Count = 0  # of layers that the registry had already
    pushed_layers: Count = 0


class ScanMissing(Struct, frozen=True, kw_only=True, tag="missing"):
    """There is no scan of the image, and why."""

    why: ShortText


class ScanPending(Struct, frozen=True, kw_only=True, tag="pending"):
    """The scan is under way; it may follow within 15 minutes of the result."""


class ScanReport(Struct, frozen=True, kw_only=True, tag="report"):
    """What a scan has found: how many weaknesses of each severity."""

    scanner: ShortText  # "trivy 0.59.1"
    scanned_at: ShortText  # RFC 3339
    findings: Annotated[dict[ShortText, Count], Meta(max_length=16)] = {}  # by severity
    report_digest: DigestText | None = None  # of the whole report, as an artifact


Scan: TypeAlias = ScanMissing | ScanPending | ScanReport


class Artifact(Struct, frozen=True, kw_only=True):
    """A side artifact. None is made yet; the field stands in the envelope from the first one on."""

    name: ShortText
    media_type: ShortText
    digest: DigestText
    size_bytes: Count


class StopProof(Struct, frozen=True, kw_only=True):
    """What was left of a build after it was stopped: each list is what was found, so empty is good.

    Taken by looking again after the clean-up, not by trusting that it worked.
    """

    processes: Texts = ()
    mounts: Texts = ()
    containers: Texts = ()
    cgroups: Texts = ()
    directories: Texts = ()
    took_ms: Count = 0

    @property
    def clean(self) -> bool:
        """Nothing was left."""
        found = (self.processes, self.mounts, self.containers, self.cgroups, self.directories)
        return not any(found)


class Envelope(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/builds/{id}/result`, accepted once for each build.

    Of a build for several platforms the router writes it: `manifest_digest` is the index, each of
    `platforms` has its own, and what there is once for an image is the first platform's.
    """

    outcome: Outcome
    manifest_digest: DigestText | None = None
    config_digest: DigestText | None = None
    platforms: Annotated[tuple[PlatformImage, ...], Meta(max_length=16)] = ()
    config: ImageConfig | None = None
    artifacts: Annotated[tuple[Artifact, ...], Meta(max_length=64)] = ()
    scan: Scan = ScanMissing(why="scanning is not part of this release")
    timings: Timings = Timings()
    peak_memory_bytes: Count | None = None  # none: the machine does not count it
    cache: CacheUse = CacheUse()
    bytes_moved: BytesMoved = BytesMoved()
    warnings: Texts = ()
    failure: Failure | None = None
    stop_proof: StopProof | None = None  # of cancelled builds
    log_bytes: Count = 0
    log_digest: DigestText | None = None
    # Written by the router when it accepts the result: the runner cannot know them.
    attempts: Count = 0
    where: ShortText | None = None  # the runner, or those of all platforms: "desktop, pi"


class Receipt(Struct, frozen=True, kw_only=True):
    """Answer to a result. The same result again gets the same receipt for 15 minutes."""

    build_id: ShortText
    fence: Count
    # Queued: it was the runner's fault, and another one tries.
    state: Literal["succeeded", "failed", "cancelled", "queued"]
    reference: str | None = None
