"""What to build: the plan, and the request that submits it."""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from pierhead.protocol.digest import DigestText
from pierhead.protocol.ids import (
    EnvironmentName,
    GroupName,
    ProjectName,
    ReplayKey,
    RunnerName,
    SecretId,
    TagName,
)
from pierhead.protocol.platform import PlatformText

# One environment string is at most 128 KiB on Linux (MAX_ARG_STRLEN); 32 KiB leaves room.
Value: TypeAlias = Annotated[str, Meta(max_length=32 * 1024)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
# Of a build argument or a label: it is written before an equals sign.
PairName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=r"^[^=\x00-\x1f\x7f]+\Z",
        description="a name without an equals sign or control characters",
        examples=["VERSION"],
    ),
]
PathText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]

# "name:address", as `--add-host` writes it.
HostEntry: TypeAlias = Annotated[
    str,
    Meta(
        max_length=320,
        pattern=r"^[A-Za-z0-9_.-]{1,253}:[0-9a-fA-F.:]{2,45}\Z",
        description="NAME:ADDRESS, the address in numbers",
        examples=["db:10.0.0.5"],
    ),
]
# "nofile=1024:4096", soft and hard, as `--ulimit` writes it; the names are Linux' own.
Ulimit: TypeAlias = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=r"^(core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime"
        r"|sigpending|stack)=(-1|[0-9]{1,19})(:(-1|[0-9]{1,19}))?\Z",
        description="NAME=SOFT:HARD, with a name of Linux and -1 for no limit",
        examples=["nofile=1024:4096"],
    ),
]
SHM_BYTES_MAX: Final = 64 * 1024**3
CONTEXT_BYTES_MAX: Final = 4 * 1024**3
CONTEXT_FILES_MAX: Final = 1_000_000
CONTEXT_PAGES_MAX: Final = 20_000
TIMEOUT_SECONDS_MAX: Final = 6 * 3600
QUEUE_WAIT_SECONDS_MAX: Final = 86_400
# What today's builders take of one secret is 500 KiB; here it is all of a build's together, so that
# a submit stays one small document.
SECRETS_BYTES_MAX: Final = 512 * 1024
SECRETS_MAX: Final = 128
PLATFORMS_MAX: Final = 4

IfNobody: TypeAlias = Literal["here", "wait", "fail"]
# report: scan where a scanner is there, and say so where none is. gate: no image without a scan.
ScanWish: TypeAlias = Literal["off", "report", "gate"]


class Plan(Struct, frozen=True, kw_only=True):
    """What a runner needs to know to build, apart from the context."""

    dockerfile: PathText = "Dockerfile"  # relative to the context's root
    # What people call it, when it was given apart from the context.
    dockerfile_named: PathText | None = None
    target: Name | None = None
    build_args: Annotated[dict[PairName, Value], Meta(max_length=256)] = {}
    labels: Annotated[dict[PairName, Value], Meta(max_length=256)] = {}
    no_cache: bool = False
    platform: PlatformText | None = None  # none: what the runner is
    network: Literal["default", "none"] = "default"
    pull: bool = False  # ask for the base images' newest, whatever the runner has
    add_hosts: Annotated[tuple[HostEntry, ...], Meta(max_length=64)] = ()
    shm_bytes: Annotated[int, Meta(ge=64 * 1024, le=SHM_BYTES_MAX)] | None = None  # none: 64 MiB
    ulimits: Annotated[tuple[Ulimit, ...], Meta(max_length=32)] = ()
    source_date_epoch: Annotated[int, Meta(ge=0, le=2**33)] | None = None  # seconds; none: 1980
    timeout_seconds: Annotated[int, Meta(ge=1, le=TIMEOUT_SECONDS_MAX)] = 1800
    secrets: Annotated[tuple[SecretId, ...], Meta(max_length=SECRETS_MAX)] = ()  # names, no values
    scan: ScanWish = "report"


class ContextRef(Struct, frozen=True, kw_only=True):
    """A context that was uploaded before."""

    digest: DigestText  # of the tree: names, kinds, modes, link targets and contents
    size_bytes: Annotated[int, Meta(ge=0, le=CONTEXT_BYTES_MAX)]  # of all files
    unpacked_bytes: Annotated[int, Meta(ge=0, le=4 * CONTEXT_BYTES_MAX)]  # of the tar
    files: Annotated[int, Meta(ge=0, le=CONTEXT_FILES_MAX)]


class Submit(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/builds`. The same `key` again is the same build.

    `secrets` has values, at most `SECRETS_BYTES_MAX` together; the router takes them out before it
    keeps anything, and writes their names into the plan. `secret_args` says that build arguments
    which look like secrets are none, or may be read in the image.
    """

    project: ProjectName
    plan: Plan
    # More than one is a parent build with a child for each: one image for all of them, or none.
    platforms: Annotated[tuple[PlatformText, ...], Meta(max_length=PLATFORMS_MAX)] = ()
    context: ContextRef
    environment: EnvironmentName = "production"
    key: ReplayKey | None = None
    tags: Annotated[tuple[TagName, ...], Meta(max_length=16)] = ()
    if_nobody: IfNobody = "here"
    max_queue_wait_seconds: Annotated[int, Meta(ge=0, le=QUEUE_WAIT_SECONDS_MAX)] = 300
    on: Annotated[tuple[RunnerName, ...], Meta(max_length=16)] = ()  # these only; none: any
    supersedes: GroupName | None = None  # older builds of this group end with this one's submission
    secrets: Annotated[dict[SecretId, bytes], Meta(max_length=SECRETS_MAX)] = {}  # base64
    secret_args: bool = False

    def __repr__(self) -> str:
        # A repr ends up in logs and in reports of failed tests.
        return f"Submit(project={self.project!r}, key={self.key!r}, secrets={sorted(self.secrets)})"


class ContextOffer(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/contexts`: the tree that a context is. Asking again is harmless."""

    project: ProjectName
    digest: DigestText  # of the tree
    pages: Annotated[bytes, Meta(max_length=32 * CONTEXT_PAGES_MAX)]  # their digests, 32 bytes each


class ContextState(Struct, frozen=True, kw_only=True):
    """What is still missing of a context; when nothing is and it is not there yet, ask again."""

    context: ContextRef | None = None  # it is there
    missing: bytes = b""  # digests of 32 bytes each; perhaps not of all that is missing


class ObjectsKept(Struct, frozen=True, kw_only=True):
    """Answer to `POST /api/contexts/objects`."""

    objects: int  # that came, whether or not they were there before
