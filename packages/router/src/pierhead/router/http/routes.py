"""The whole API on one screen: method, path, handler, who may call it, what goes in and comes out.

Who may call what is decided by the use case behind each; the column here is what the OpenAPI
document says, and the token matrix of the tests compares the two.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pierhead.protocol.authority import AuthorityView, Replace, Replaced, Rotate
from pierhead.protocol.build import (
    BuildPage,
    BuildView,
    CancelRequest,
    Event,
    Rerun,
    Why,
    WhyRequest,
)
from pierhead.protocol.lease import (
    Acquire,
    Acquired,
    Heartbeat,
    LogAccepted,
    Release,
    Renewed,
    Sealed,
    Signals,
)
from pierhead.protocol.meta import Meta, PullToken, PullTokenRequest, ServerCapabilities
from pierhead.protocol.objects import BODY_BYTES_MAX, OBJECTS_MEDIA_TYPE
from pierhead.protocol.plan import (
    ContextOffer,
    ContextState,
    ObjectsKept,
    Plan,
    Submit,
)
from pierhead.protocol.project import (
    EnvironmentPage,
    EnvironmentView,
    NewEnvironment,
    NewProject,
    NewToken,
    ProjectPage,
    ProjectView,
    Removal,
    TokenMade,
    TokenPage,
    TokenView,
)
from pierhead.protocol.registry import NewRegistry, RegistryAdded, RegistryPage, RegistryView
from pierhead.protocol.result import Envelope, Receipt
from pierhead.protocol.runner import (
    AddRunner,
    Enroll,
    Enrolled,
    JoinCode,
    RunnerView,
    Session,
    SessionRelease,
    SessionRequest,
)
from pierhead.protocol.version import OFFSET_HEADER, RELEASE
from pierhead.router.domain.logbook import PART_BYTES_MAX as LOG_PART_BYTES_MAX
from pierhead.router.http.attempts import AttemptHandlers
from pierhead.router.http.authority import AuthorityHandlers
from pierhead.router.http.builds import BuildHandlers
from pierhead.router.http.contexts import ContextHandlers
from pierhead.router.http.projects import ProjectHandlers, TokenHandlers
from pierhead.router.http.registries import LoginHandlers
from pierhead.router.http.registry import RegistryHandlers
from pierhead.router.http.run import JSON_LINES, PARAMETERS, RunHandlers
from pierhead.router.http.runners import RunnerHandlers
from pierhead.server.endpoint import Bytes, Endpoint, Parameter, Stream, Who
from pierhead.server.openapi import openapi

# fmt: off
OFFSET = Parameter(name=OFFSET_HEADER, place="header", kind="integer", required=True, summary="Where the bytes in the body begin.")
LAST_EVENT = Parameter(name="Last-Event-ID", place="header", summary="The cursor of the last event that was seen.")
LOG_OFFSET = Parameter(name="offset", kind="integer", summary="The first byte that is wanted.")
LIMIT = Parameter(name="limit", kind="integer", summary="How many, at most.")
AFTER = Parameter(name="after", summary="`next` of the page before.")
OF_PROJECT = Parameter(name="project", required=True, summary="The project that it is for.")
PAGE = (
    Parameter(name="project", summary="Only builds of this project."),
    LIMIT,
    AFTER,
    Parameter(name="mine", summary="1: only builds that were submitted with a token of the same kind."),
    Parameter(name="children", summary="1: with each platform's build of those for several."),
)
TOKEN_PAGE = (Parameter(name="project", summary="Whose tokens; without it, the owner's."), LIMIT, AFTER)
PROJECT = Parameter(name="project", required=True, summary="Of which project.")
ENVIRONMENT = Parameter(name="name", required=True, summary="Which environment.")
HOST = Parameter(name="host", required=True, summary="Of which registry.")
LOGIN_PROJECT = Parameter(name="project", summary="Whose login; without it, the one for all projects.")
PLAN = Parameter(name="plan", kind="boolean", summary="Only say what would go.")
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """Who answers: one for each part of the table."""

    builds: BuildHandlers
    run: RunHandlers
    contexts: ContextHandlers
    attempts: AttemptHandlers
    runners: RunnerHandlers
    projects: ProjectHandlers
    tokens: TokenHandlers
    logins: LoginHandlers
    authority: AuthorityHandlers


def all_endpoints(of: Handlers) -> list[Endpoint]:
    """Return the whole table. What is not in it is neither served nor described."""
    return [
        *build_endpoints(of.builds),
        *run_endpoints(of.run),
        *context_endpoints(of.contexts),
        *attempt_endpoints(of.attempts),
        *runner_endpoints(of.runners),
        *project_endpoints(of.projects),
        *token_endpoints(of.tokens),
        *login_endpoints(of.logins),
        *authority_endpoints(of.authority),
    ]


def build_endpoints(of: BuildHandlers) -> list[Endpoint]:
    """Return what whoever submits builds may call."""
    who: Who = "submitter"
    builds, build = "/api/builds", "/api/builds/{build_id}"
    # fmt: off
    return [
        Endpoint(method="POST", path=builds, handler=of.submit, who=who, body=Submit, answer=BuildView, summary="Submit a build"),
        Endpoint(method="GET", path=builds, handler=of.page, who=who, answer=BuildPage, parameters=PAGE, summary="Builds, newest first"),
        Endpoint(method="POST", path=f"{builds}:why", handler=of.why_not, who=who, body=WhyRequest, answer=Why, summary="Who would take such a build; nothing is queued"),
        Endpoint(method="GET", path=build, handler=of.show, who=who, answer=BuildView, summary="One build"),
        Endpoint(method="GET", path=f"{build}/why", handler=of.why, who=who, answer=Why, summary="Why each runner takes it or not"),
        Endpoint(method="GET", path=f"{build}/events", handler=of.follow, who=who, answer=Stream(document=Event), parameters=(LAST_EVENT,), summary="Its life, event by event"),
        Endpoint(method="GET", path=f"{build}/logs", handler=of.log, who=who, answer=Bytes(), parameters=(LOG_OFFSET,), summary="Bytes of its log"),
        Endpoint(method="POST", path=f"{build}/cancel", handler=of.cancel, who=who, body=CancelRequest, answer=BuildView, summary="Ask for it to be cancelled"),
        Endpoint(method="POST", path=f"{build}/rerun", handler=of.rerun, who=who, body=Rerun, answer=BuildView, summary="Submit it again, same plan and context"),
        Endpoint(method="POST", path=f"{build}/run-here", handler=of.run_here, who=who, answer=BuildView, summary="Let this machine take it, though it waits for others"),
    ]
    # fmt: on


def run_endpoints(of: RunHandlers) -> list[Endpoint]:
    """Return the whole build in one call."""
    tar, lines = (
        Bytes(media_type="application/x-tar"),
        Stream(document=Event, media_type=JSON_LINES),
    )
    # fmt: off
    return [
        Endpoint(method="POST", path="/api/builds:run", handler=of.run, who="submitter", body=tar, answer=lines, parameters=PARAMETERS, summary="A tar in, events out"),
        Endpoint(method="PUT", path="/api/builds:run", handler=of.run, who="submitter", body=tar, answer=lines, parameters=PARAMETERS, summary="The same, for curl -T"),
    ]
    # fmt: on


def context_endpoints(of: ContextHandlers) -> list[Endpoint]:
    """Return how contexts come in."""
    who: Who = "submitter"
    contexts = "/api/contexts"
    objects = Bytes(media_type=OBJECTS_MEDIA_TYPE, limit=BODY_BYTES_MAX)
    # fmt: off
    return [
        Endpoint(method="POST", path=contexts, handler=of.offer, who=who, body=ContextOffer, answer=ContextState, summary="Say what a context is, and hear what is missing of it"),
        Endpoint(method="POST", path=f"{contexts}/objects", handler=of.keep, who=who, body=objects, answer=ObjectsKept, parameters=(OF_PROJECT,), summary="Send content that is missing"),
    ]
    # fmt: on


def attempt_endpoints(of: AttemptHandlers) -> list[Endpoint]:
    """Return what the holder of a build token may call."""
    who: Who = "attempt"
    build = "/api/builds/{build_id}"
    # fmt: off
    return [
        Endpoint(method="GET", path=f"{build}/plan", handler=of.plan, who=who, answer=Plan, summary="What to build"),
        Endpoint(method="GET", path=f"{build}/context.tar.zst", handler=of.context, who=who, answer=Bytes(media_type="application/zstd"), summary="The context, with Range"),
        Endpoint(method="GET", path=f"{build}/secrets", handler=of.secrets, who=who, answer=Sealed, summary="Its secrets, sealed to the session that holds it"),
        Endpoint(method="POST", path=f"{build}/heartbeat", handler=of.heartbeat, who=who, body=Heartbeat, answer=Renewed, summary="Show that the attempt lives"),
        Endpoint(method="GET", path=f"{build}/signals", handler=of.signals, who=who, answer=Signals, summary="Held until there is something to say"),
        Endpoint(method="PATCH", path=f"{build}/logs", handler=of.log, who=who, body=Bytes(limit=LOG_PART_BYTES_MAX), answer=LogAccepted, parameters=(OFFSET,), summary="Add to the log"),
        Endpoint(method="POST", path=f"{build}/release", handler=of.release, who=who, body=Release, answer=BuildView, summary="Give the build back"),
        Endpoint(method="POST", path=f"{build}/result", handler=of.report, who=who, body=Envelope, answer=Receipt, summary="Report the result, once"),
    ]
    # fmt: on


def runner_endpoints(of: RunnerHandlers) -> list[Endpoint]:
    """Return how runners come in and take builds."""
    runners = "/api/runners"
    # fmt: off
    return [
        Endpoint(method="POST", path=runners, handler=of.add, who="owner", body=AddRunner, answer=JoinCode, summary="Make a join code"),
        Endpoint(method="DELETE", path=f"{runners}/{{runner}}", handler=of.remove, who="owner", answer=RunnerView, summary="Remove a runner; what it builds waits again"),
        Endpoint(method="POST", path=f"{runners}/enroll", handler=of.enroll, who="anybody", body=Enroll, answer=Enrolled, summary="Turn a join code into a credential"),
        Endpoint(method="PUT", path=f"{runners}/session", handler=of.session, who="runner", body=SessionRequest, answer=Session, summary="Begin to work"),
        Endpoint(method="POST", path=f"{runners}/acquire", handler=of.acquire, who="runner", body=Acquire, answer=Acquired, summary="Take builds, held"),
        Endpoint(method="POST", path=f"{runners}/release", handler=of.release, who="runner", body=SessionRelease, answer=RunnerView, summary="End the session: nothing is taken any more"),
    ]
    # fmt: on


def project_endpoints(of: ProjectHandlers) -> list[Endpoint]:
    """Return what concerns projects, and the control plane itself."""
    projects, environments = "/api/projects", "/api/environments"
    # fmt: off
    return [
        Endpoint(method="GET", path="/api/meta", handler=of.meta, who="anybody", answer=Meta, summary="Versions and features"),
        Endpoint(method="GET", path="/api/capabilities", handler=of.capabilities, who="submitter", answer=ServerCapabilities, summary="Limits and runners"),
        Endpoint(method="GET", path=projects, handler=of.page, who="submitter", answer=ProjectPage, parameters=(LIMIT, AFTER), summary="The projects that the token may see"),
        Endpoint(method="POST", path=projects, handler=of.add, who="owner", body=NewProject, answer=ProjectView, summary="Make a project, or change one"),
        Endpoint(method="GET", path=f"{projects}/{{project:path}}", handler=of.show, who="submitter", answer=ProjectView, summary="One project"),
        Endpoint(method="DELETE", path=f"{projects}/{{project:path}}", handler=of.remove, who="owner", answer=Removal, parameters=(PLAN,), summary="Remove a project with all that it had"),
        Endpoint(method="GET", path=environments, handler=of.environments, who="submitter", answer=EnvironmentPage, parameters=(PROJECT, LIMIT, AFTER), summary="The environments of a project"),
        Endpoint(method="POST", path=environments, handler=of.add_environment, who="owner", body=NewEnvironment, answer=EnvironmentView, summary="Make an environment, or change one"),
        Endpoint(method="DELETE", path=environments, handler=of.remove_environment, who="owner", answer=EnvironmentView, parameters=(PROJECT, ENVIRONMENT), summary="Forget an environment"),
    ]
    # fmt: on


def token_endpoints(of: TokenHandlers) -> list[Endpoint]:
    """Return how tokens are made, listed and ended."""
    tokens = "/api/tokens"
    # fmt: off
    return [
        Endpoint(method="GET", path=f"{tokens}/self", handler=of.mine, who="submitter", answer=TokenView, summary="The token that asks"),
        Endpoint(method="GET", path=tokens, handler=of.page, who="owner", answer=TokenPage, parameters=TOKEN_PAGE, summary="Tokens, newest first"),
        Endpoint(method="POST", path=tokens, handler=of.add, who="owner", body=NewToken, answer=TokenMade, summary="Make a token"),
        Endpoint(method="POST", path="/api/projects/{project:path}/pull-tokens", handler=of.add_pull, who="submitter", body=PullTokenRequest, answer=PullToken, summary="Make a password that only pulls, for a while"),
        Endpoint(method="DELETE", path=f"{tokens}/{{token_id}}", handler=of.revoke, who="owner", answer=TokenView, summary="End a token"),
    ]
    # fmt: on


def login_endpoints(of: LoginHandlers) -> list[Endpoint]:
    """Return how the owner's logins at other registries are added, listed and forgotten."""
    registries = "/api/registries"
    # fmt: off
    return [
        Endpoint(method="GET", path=registries, handler=of.page, who="owner", answer=RegistryPage, summary="Other registries that builds may use"),
        Endpoint(method="POST", path=registries, handler=of.add, who="owner", body=NewRegistry, answer=RegistryAdded, summary="Try a login at another registry, and keep it"),
        Endpoint(method="DELETE", path=registries, handler=of.remove, who="owner", answer=RegistryView, parameters=(HOST, LOGIN_PROJECT), summary="Forget a login"),
    ]
    # fmt: on


def authority_endpoints(of: AuthorityHandlers) -> list[Endpoint]:
    """Return what concerns the certificate authority; all but looking is for its own machine."""
    rotation = "/api/ca/rotation"
    # fmt: off
    return [
        Endpoint(method="GET", path="/api/ca", handler=of.show, who="owner", answer=AuthorityView, summary="The certificate authority, and who knows it"),
        Endpoint(method="POST", path=rotation, handler=of.begin, who="owner", body=Rotate, answer=AuthorityView, summary="Announce another authority; only on the control plane's own machine"),
        Endpoint(method="DELETE", path=rotation, handler=of.cancel, who="owner", answer=AuthorityView, summary="Take the announcement back; only on the control plane's own machine"),
        Endpoint(method="POST", path=f"{rotation}/advance", handler=of.advance, who="owner", answer=AuthorityView, summary="Go on to the next phase now; only on the control plane's own machine"),
        Endpoint(method="POST", path="/api/ca/replacement", handler=of.replace, who="owner", body=Replace, answer=Replaced, summary="Replace the authority at once: all machines join again; only on the control plane's own machine"),
    ]
    # fmt: on


def registry_routes(of: RegistryHandlers) -> list[Route]:
    """Return the registry: its API is the OCI distribution specification's, not ours."""
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return [
        Route("/v2/token", of.token, methods=["GET"]),
        Route("/v2/token", of.token_by_form, methods=["POST"]),
        Route("/v2/{path:path}", of.dispatch, methods=methods),
    ]


def openapi_route(endpoints: Sequence[Endpoint]) -> Route:
    """Return where the API describes itself; the description needs no token."""
    described = json.dumps(openapi(endpoints, title="pierhead router", release=RELEASE)).encode()

    async def describe(_request: Request) -> Response:
        return Response(described, media_type="application/json")

    return Route("/api/openapi.json", describe, methods=["GET"])
