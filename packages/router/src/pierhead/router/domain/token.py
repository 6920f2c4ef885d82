"""Who is asking, and what they may do.

A token is `<kind>_<body>`; the router keeps only its SHA-256. The build token is derived and not
stored: an HMAC of the installation's key over the build, the fence and the request that was
granted, so that the repeat of a lost grant carries the very same token.

Which principal may push or pull what in the registry is in `rights`.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from pierhead.router.domain.errors import (
    LeaseLost,
    NotAllowed,
    NotFound,
    TokenExpired,
    Unauthenticated,
)

OWNER_PREFIX: Final = "pho_"
PROJECT_PREFIX: Final = "php_"
RUNNER_PREFIX: Final = "phr_"
BUILD_PREFIX: Final = "phb_"
PULL_PREFIX: Final = "phl_"
_SEAL_LENGTH: Final = 22  # 132 bits
_LOGIN: Final = "use a token of the owner or of a project: pierhead login URL"


@dataclass(frozen=True, slots=True)
class Owner:
    """May do everything. `name`: of the token, for those who ask later who did it."""

    name: str = "owner"


@dataclass(frozen=True, slots=True)
class ProjectHolder:
    """May look at one project and pull from it; with `write` also submit, cancel and push.

    `environment`: only the builds of this one, and pushing past them is not for it.
    """

    project: str
    write: bool = True
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class Runner:
    """May open a session and take builds; nothing of any build."""

    name: str
    here: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """May do what one attempt of one build needs; in the registry only while it is `live`."""

    build_id: str
    fence: int
    project: str
    live: bool = True


@dataclass(frozen=True, slots=True)
class Puller:
    """May pull from one repository, and nothing else."""

    repository: str


def name_of(principal: "Principal") -> str:
    """Return who that is, for people and as the name under which builds were submitted."""
    match principal:
        case Owner():
            return "the owner"
        case ProjectHolder(project):
            return f"project {project}"
        case Runner(name):
            return f"runner {name}"
        case _:
            return "a token of one purpose"


Principal: TypeAlias = Owner | ProjectHolder | Runner | Attempt | Puller


def token_hash(token: str) -> str:
    """Return what is stored of a token. Tokens have 256 random bits, so no salt is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def build_token(key: bytes, build_id: str, fence: int, request_id: str) -> str:
    """Return the token of one attempt: `phb_<build>.<fence>.<mac>.<seal>`."""
    secret = derived_secret(key, "build", build_id, str(fence), request_id)
    return f"{BUILD_PREFIX}{build_id}.{fence}.{secret}.{_seal(key, build_id, fence)}"


def bears_seal(key: bytes, token: str, build_id: str, fence: int) -> bool:
    """Say whether this installation once gave out a token for the attempt, and this may be it.

    The request of an attempt that is over is forgotten, so its token cannot be derived again. The
    seal still can, and tells it from what somebody made up.
    """
    seal = token.rpartition(".")[2]
    return hmac.compare_digest(_seal(key, build_id, fence).encode(), seal.encode())


def _seal(key: bytes, build_id: str, fence: int) -> str:
    return derived_secret(key, "attempt", build_id, str(fence))[:_SEAL_LENGTH]


def derived_secret(key: bytes, *parts: str) -> str:
    """Return 256 bits that only this installation can make from the parts, as url-safe text."""
    mac = hmac.digest(key, "\n".join(parts).encode(), "sha256")
    return urlsafe_b64encode(mac).rstrip(b"=").decode()


def parse_build_token(token: str) -> tuple[str, int]:
    """Return the build and the fence that a token claims. Nothing is verified by this.

    Raises:
        Unauthenticated: it has not the form of a build token.
    """
    build_id, _, rest = token.removeprefix(BUILD_PREFIX).partition(".")
    fence = rest.partition(".")[0]
    plausible = token.startswith(BUILD_PREFIX) and len(token) <= 256 and fence.isascii()
    if not (plausible and build_id and fence.isdigit() and len(fence) <= 9 and int(fence) > 0):
        raise Unauthenticated("this is not a token of a build")
    return build_id, int(fence)


def pull_token(key: bytes, repository: str, expires_at: datetime) -> str:
    """Return a token that pulls from one repository: `phl_<repository>~<seconds>~<mac>`.

    It is derived and not stored, so handing out many leaves nothing to clean up.
    """
    seconds = str(int(expires_at.timestamp()))
    secret = derived_secret(key, "pull", repository, seconds)
    return f"{PULL_PREFIX}{repository}~{seconds}~{secret}"


def parse_pull_token(key: bytes, token: str, *, now: datetime) -> Puller:
    """Return who holds a pull token.

    Raises:
        Unauthenticated: this installation did not make it.
        TokenExpired: it did, and its time is over.
    """
    repository, _, rest = token.removeprefix(PULL_PREFIX).partition("~")
    seconds = rest.partition("~")[0]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 11):
        raise Unauthenticated("this is not a token that pulls")
    expires_at = datetime.fromtimestamp(int(seconds), UTC)
    made = pull_token(key, repository, expires_at)
    if not hmac.compare_digest(made.encode(), token.encode()):
        raise Unauthenticated("this token is not known here")
    if now >= expires_at:
        raise TokenExpired("the time of this token is over", hint="ask for a new one")
    return Puller(repository)


def require_owner(principal: Principal) -> None:
    """Raise `NotAllowed` for everybody but the owner."""
    if not isinstance(principal, Owner):
        raise NotAllowed("only the owner may do that", hint="pierhead login URL, as the owner")


def require_rotation(principal: Principal, *, is_here: bool) -> Owner:
    """Return whoever may change the certificate authority; `is_here`: they are on its machine.

    A token can be copied to anywhere. There are no people yet who log in and prove that it is them,
    so being on the machine has to do.

    Raises:
        NotAllowed: everybody else.
    """
    require_owner(principal)
    if not isinstance(principal, Owner) or not is_here:
        detail = "the owner may do that on the control plane's own machine, and nowhere else"
        raise NotAllowed(detail, hint="there, without --url and PIERHEAD_URL: pierhead ca")
    return principal


def require_submitter(principal: Principal) -> Owner | ProjectHolder:
    """Return whoever looks at builds; raise `NotAllowed` for what only builds them."""
    if not isinstance(principal, Owner | ProjectHolder):
        raise NotAllowed("the token of a runner or of a build may not do that", hint=_LOGIN)
    return principal


def require_view(principal: Principal, project: str) -> None:
    """Let the owner pass, and whoever has a token of the project.

    Raises:
        NotAllowed: a token that never may.
        NotFound: a token of another project, which must not learn what exists.
    """
    holder = require_submitter(principal)
    if isinstance(holder, ProjectHolder) and holder.project != project:
        raise NotFound(f"there is no project {project} for this token")


def require_project(principal: Principal, project: str, environment: str | None = None) -> None:
    """Let the owner pass, and the project's tokens that may change something.

    Raises:
        NotAllowed: a token that never may, may only look, or is for another environment.
        NotFound: a token of another project, which must not learn what exists.
    """
    require_view(principal, project)
    if not isinstance(principal, ProjectHolder):
        return
    if not principal.write:
        hint = f"ask the owner for one: pierhead projects tokens add {project} --ability write"
        raise NotAllowed("this token may look, and change nothing", hint=hint)
    if principal.environment is not None and environment not in {None, principal.environment}:
        hint = f"add --environment {principal.environment}, or use a token of the whole project"
        raise NotAllowed(f"this token is for builds of {principal.environment} alone", hint=hint)


def require_runner(principal: Principal) -> Runner:
    """Return the runner, or raise `NotAllowed`."""
    if not isinstance(principal, Runner):
        hint = "join this machine: pierhead join CODE"
        raise NotAllowed("only a runner's credential may do that", hint=hint)
    return principal


def require_attempt(principal: Principal, build_id: str, fence: int) -> Attempt:
    """Return the attempt that the token is for, if it is the one that is spoken of.

    Raises:
        NotAllowed: not a build token, or one of another build.
        LeaseLost: the token's fence is not the one in the header.
    """
    if not isinstance(principal, Attempt) or principal.build_id != build_id:
        raise NotAllowed("only the token of this build may do that")
    if principal.fence != fence:
        raise LeaseLost(f"the token is for attempt {principal.fence} of {build_id}, not {fence}")
    return principal
