"""What a control plane says of itself."""

from typing import Annotated, Final

from msgspec import Meta as Bounds
from msgspec import Struct

from pierhead.protocol.ids import Count, ProjectName, ShortText
from pierhead.protocol.plan import CONTEXT_BYTES_MAX
from pierhead.protocol.runner import RunnerView

# Whoever deploys asks again for each deployment; a day covers the slowest of them.
PULL_SECONDS_MAX: Final = 24 * 3600


class Meta(Struct, frozen=True, kw_only=True):
    """Answer to `GET /api/meta`; needs no token."""

    low: int  # the oldest version of the protocol that is spoken
    high: int
    deprecated: tuple[int, ...] = ()  # spoken still, but not by the next release
    release: str
    features: tuple[str, ...] = ()


class Limits(Struct, frozen=True, kw_only=True):
    """What a request may be. All in bytes."""

    context_bytes: int = CONTEXT_BYTES_MAX
    part_bytes: int = 16 * 1024**2  # the largest body of any request
    log_part_bytes: int = 256 * 1024


class Concern(Struct, frozen=True, kw_only=True):
    """Something that the owner of a control plane should know of, in time."""

    what: ShortText  # "authority", "certificate"
    text: ShortText
    remedy: ShortText  # what to type
    needs_you: bool = True  # no: it goes on by itself


class BuildCounts(Struct, frozen=True, kw_only=True):
    """How many builds there are now; one for several platforms counts once for each.

    `project`: only its builds are counted, as whoever asks may know of no other's.
    """

    running: Count
    waiting: Count
    project: ProjectName | None = None


class ServerCapabilities(Struct, frozen=True, kw_only=True):
    """Answer to `GET /api/capabilities`: what this control plane can build, now."""

    registry: ShortText  # HOST of references: "127.0.0.1:7443"
    runners: tuple[RunnerView, ...]
    limits: Limits = Limits()
    builds: BuildCounts | None = None  # none: an older control plane does not count
    concerns: tuple[Concern, ...] = ()  # told to owners alone; what needs them comes first


class PullTokenRequest(Struct, frozen=True, kw_only=True):
    """Body of `POST /api/projects/{project}/pull-tokens`."""

    ttl_seconds: Annotated[int, Bounds(ge=1, le=PULL_SECONDS_MAX)] = 900


class PullToken(Struct, frozen=True, kw_only=True):
    """A password for the registry that pulls from one repository, for a while, and nothing else."""

    registry: ShortText  # HOST of references
    repository: ProjectName
    username: ShortText
    token: ShortText
    expires_at: str  # RFC 3339 in UTC
