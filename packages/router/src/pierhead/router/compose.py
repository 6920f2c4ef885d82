"""Puts a router together from its parts: with `app`, the only place where adapters are named."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request

from pierhead.router.adapters.clock import SystemClock
from pierhead.router.adapters.contents import FileContents
from pierhead.router.adapters.entropy import SystemEntropy
from pierhead.router.adapters.folders import (
    replace_secret,
    secret_file,
    write_registry_login,
)
from pierhead.router.adapters.handshakes import Handshakes
from pierhead.router.adapters.incoming import DiskIncoming
from pierhead.router.adapters.logs import FileLogs
from pierhead.router.adapters.sql.ledger import SqlStore
from pierhead.router.adapters.vault import KeyVault
from pierhead.router.config import URL_FILE, Settings
from pierhead.router.domain.build import LeasePolicy
from pierhead.router.domain.reach import Reach
from pierhead.router.domain.retention import Retention
from pierhead.router.domain.token import OWNER_PREFIX, Principal
from pierhead.router.domain.waiting import WaitingPolicy
from pierhead.router.http.attempts import AttemptHandlers
from pierhead.router.http.builds import BuildHandlers
from pierhead.router.http.contexts import ContextHandlers
from pierhead.router.http.projects import ProjectHandlers, TokenHandlers
from pierhead.router.http.registry import RegistryHandlers
from pierhead.router.http.requests import EXCEPTION_HANDLERS, check_protocol, token_of
from pierhead.router.http.routes import (
    attempt_endpoints,
    build_endpoints,
    context_endpoints,
    openapi_route,
    project_endpoints,
    registry_routes,
    run_endpoints,
    runner_endpoints,
    token_endpoints,
)
from pierhead.router.http.run import RunHandlers
from pierhead.router.http.runners import RunnerHandlers
from pierhead.router.http.welcome import WelcomeHandlers, welcome_routes
from pierhead.router.ports import Clock, Entropy
from pierhead.router.services.again import Again
from pierhead.router.services.attempts import Attempts
from pierhead.router.services.bells import Bells
from pierhead.router.services.capabilities import CapabilitiesOf
from pierhead.router.services.contexts import Contexts
from pierhead.router.services.events import Events
from pierhead.router.services.garbage import Garbage
from pierhead.router.services.identity import Identity
from pierhead.router.services.images import CONFIG_BYTES_MAX
from pierhead.router.services.intake import Intakes
from pierhead.router.services.lifecycle import Lifecycle
from pierhead.router.services.projects import Projects
from pierhead.router.services.registry import Registry
from pierhead.router.services.run import Runs
from pierhead.router.services.runners import Runners, WayIn
from pierhead.router.services.steps import Steps
from pierhead.router.services.submit import Submissions
from pierhead.router.services.sweep import Sweep
from pierhead.router.services.tokens import Tokens
from pierhead.server.blobs import BlobStore
from pierhead.server.bounded import Patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A running router: its application and what goes on beside requests."""

    app: Starlette
    bells: Bells
    runners: Runners
    sweep: Sweep
    identity: Identity
    projects: Projects
    garbage: Garbage
    contexts: Contexts
    clock: Clock
    handshakes: Handshakes | None
    url: str


@contextlib.asynccontextmanager
async def open_router(
    settings: Settings,
    reached: Reach,
    *,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> AsyncIterator[Router]:
    """Open everything that a router needs, and close it at the end."""
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    key = secret_file(settings.data / "installation.key", entropy.secret()).encode()
    async with contextlib.AsyncExitStack() as opened:
        store = await SqlStore.open(settings.database or settings.data / "router.db")
        opened.push_async_callback(store.close)
        contents = await FileContents.open(settings.data, new_id=lambda: entropy.id("c_"))
        opened.push_async_callback(contents.close)
        identity = Identity(store=store, clock=clock, key=key)
        owner = await _owner_token(identity, settings.config / "token", entropy)
        write_registry_login(settings.config, reached.registry, owner)
        (settings.data / URL_FILE).write_text(reached.url)  # the registry's own process reads it
        handshakes = _handshakes(settings, reached, clock) if reached.own_tls else None
        yield _compose(
            settings, reached, handshakes, identity, store, contents, clock=clock, entropy=entropy
        )
        await identity.store_uses()


async def _owner_token(identity: Identity, path: Path, entropy: Entropy) -> str:
    """Return the token in the owner's file; one that was revoked is replaced.

    Whoever can start the control plane with its folders is the owner, so that nobody is locked out.
    """
    token = secret_file(path, OWNER_PREFIX + entropy.secret())
    if not await identity.open_for_owner(token, entropy.id("t_")):
        token = replace_secret(path, OWNER_PREFIX + entropy.secret())
        await identity.open_for_owner(token, entropy.id("t_"))
    return token


def _handshakes(settings: Settings, reached: Reach, clock: Clock) -> Handshakes:
    found = Handshakes(settings, reached, clock)
    # What `docker` reads as /etc/docker/certs.d/HOST/ca.crt, and `PIERHEAD_CA` names.
    (settings.config / "ca.crt").write_bytes(found.authority)
    return found


def _compose(
    settings: Settings,
    reached: Reach,
    handshakes: Handshakes | None,
    identity: Identity,
    store: SqlStore,
    contents: FileContents,
    *,
    clock: Clock,
    entropy: Entropy,
) -> Router:
    host = reached.registry
    scale = settings.time_scale
    policy, bells = _scaled_policy(scale), Bells()
    patience = WaitingPolicy(offline_grace=WaitingPolicy().offline_grace * scale)
    logs = FileLogs(settings.data / "logs")
    blobs = BlobStore(settings.data, new_id=lambda: entropy.id("u_"))
    lifecycle = Lifecycle(policy=policy, logs=logs)
    vault = KeyVault(identity.key)

    async def authenticate(request: Request) -> Principal:
        check_protocol(request)
        return await identity.principal(token_of(request))

    submissions = Submissions(
        store=store,
        lifecycle=lifecycle,
        bells=bells,
        logs=logs,
        clock=clock,
        entropy=entropy,
        waiting=patience,
        vault=vault,
    )
    attempts = Attempts(
        store=store,
        lifecycle=lifecycle,
        bells=bells,
        logs=logs,
        clock=clock,
        host=host,
        read_blob=lambda digest: blobs.read(digest, CONFIG_BYTES_MAX),
        vault=vault,
        intakes=Intakes(logs),
        steps=Steps(store=store, lifecycle=lifecycle, logs=logs, clock=clock),
    )
    runners = Runners(
        store=store,
        lifecycle=lifecycle,
        bells=bells,
        clock=clock,
        entropy=entropy,
        key=identity.key,
        vault=vault,
        way_in=_way_in(reached, handshakes),
    )
    contexts = Contexts(store=store, contents=contents, clock=clock)
    events = Events(store=store, logs=logs, bells=bells)
    projects = Projects(store=store, clock=clock, logs=logs, contexts=contents)
    tokens = Tokens(store=store, clock=clock, entropy=entropy, key=identity.key, host=host)
    able = CapabilitiesOf(store=store, clock=clock, host=host)
    endpoints = [
        *build_endpoints(
            BuildHandlers(
                authenticate=authenticate,
                submissions=submissions,
                again=Again(submissions=submissions, store=store, bells=bells, clock=clock),
                events=events,
            )
        ),
        *run_endpoints(
            RunHandlers(
                authenticate=authenticate,
                runs=Runs(
                    contexts=contexts,
                    submissions=submissions,
                    incoming=DiskIncoming(settings.data / "incoming"),
                ),
                submissions=submissions,
                events=events,
            )
        ),
        *context_endpoints(ContextHandlers(authenticate=authenticate, contexts=contexts)),
        *attempt_endpoints(
            AttemptHandlers(authenticate=authenticate, attempts=attempts, contexts=contexts)
        ),
        *runner_endpoints(RunnerHandlers(authenticate=authenticate, runners=runners)),
        *project_endpoints(
            ProjectHandlers(authenticate=authenticate, projects=projects, able=able)
        ),
        *token_endpoints(
            TokenHandlers(authenticate=authenticate, identity=identity, tokens=tokens)
        ),
    ]
    registry = RegistryHandlers(
        authenticate=authenticate,
        registry=Registry(store=store, blobs=blobs, clock=clock),
        realm=f"{reached.url}/v2/token",
    )
    app = Starlette(
        routes=[
            *(endpoint.route() for endpoint in endpoints),
            openapi_route(endpoints),
            *registry_routes(registry),
            *welcome_routes(
                WelcomeHandlers(authority=handshakes.authority if handshakes else None)
            ),
        ],
        middleware=[Middleware(Patience)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False  # a path is what it is; nobody is sent to a guess
    sweep = Sweep(store=store, lifecycle=lifecycle, bells=bells, clock=clock, waiting=patience)
    return Router(
        app=app,
        bells=bells,
        runners=runners,
        sweep=sweep,
        identity=identity,
        projects=projects,
        garbage=Garbage(
            store=store,
            blobs=blobs,
            logs=logs,
            clock=clock,
            retention=Retention(
                builds=timedelta(days=settings.keep_builds_days),
                logs=timedelta(days=settings.keep_logs_days),
            ),
        ),
        contexts=contexts,
        clock=clock,
        handshakes=handshakes,
        url=reached.url,
    )


def _way_in(reached: Reach, handshakes: Handshakes | None) -> WayIn:
    if handshakes is None:
        return WayIn(reached.address, lambda: (None, ""))
    return WayIn(reached.address, handshakes.pins)


def _scaled_policy(scale: float) -> LeasePolicy:
    usual = LeasePolicy()
    return LeasePolicy(
        ttl=usual.ttl * scale, renew_every=usual.renew_every * scale, grace=usual.grace * scale
    )
