"""Puts a router together from its parts: with `app`, the only place where adapters are named."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware

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
from pierhead.router.adapters.upstream import HttpUpstreams
from pierhead.router.adapters.vault import KeyVault
from pierhead.router.config import URL_FILE, Settings
from pierhead.router.domain.build import LeasePolicy
from pierhead.router.domain.reach import Reach
from pierhead.router.domain.retention import Retention
from pierhead.router.domain.token import OWNER_PREFIX
from pierhead.router.domain.waiting import WaitingPolicy
from pierhead.router.http.application import application, authenticating
from pierhead.router.http.attempts import AttemptHandlers
from pierhead.router.http.authority import AuthorityHandlers, TellsAuthorities
from pierhead.router.http.builds import BuildHandlers
from pierhead.router.http.contexts import ContextHandlers
from pierhead.router.http.mirror import MirrorHandlers
from pierhead.router.http.projects import ProjectHandlers, TokenHandlers
from pierhead.router.http.registries import LoginHandlers
from pierhead.router.http.registry import RegistryHandlers
from pierhead.router.http.routes import (
    Handlers,
    all_endpoints,
    openapi_route,
    registry_routes,
)
from pierhead.router.http.run import RunHandlers
from pierhead.router.http.runners import RunnerHandlers
from pierhead.router.http.welcome import WelcomeHandlers, welcome_routes
from pierhead.router.ports.system import Clock, Entropy
from pierhead.router.services.again import Again
from pierhead.router.services.attempts import Attempts
from pierhead.router.services.authority import Authorities
from pierhead.router.services.bells import Bells
from pierhead.router.services.capabilities import CapabilitiesOf
from pierhead.router.services.contexts import Contexts
from pierhead.router.services.events import Events
from pierhead.router.services.garbage import Garbage
from pierhead.router.services.identity import Identity
from pierhead.router.services.images import CONFIG_BYTES_MAX
from pierhead.router.services.intake import Intakes
from pierhead.router.services.lifecycle import Lifecycle
from pierhead.router.services.logins import Logins
from pierhead.router.services.mirror import Mirror
from pierhead.router.services.outlook import Outlooks
from pierhead.router.services.passes import Passes
from pierhead.router.services.projects import Projects
from pierhead.router.services.registry import Registry
from pierhead.router.services.run import Runs
from pierhead.router.services.runners import Runners, WayIn
from pierhead.router.services.steps import Steps
from pierhead.router.services.submit import Submissions
from pierhead.router.services.sweep import Sweep
from pierhead.router.services.tokens import Tokens
from pierhead.router.services.why import Reasons
from pierhead.server.blobs import BlobStore


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
    authorities: Authorities
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
        parts = _parts(settings, reached, identity, store, contents, clock=clock, entropy=entropy)
        opened.push_async_callback(parts.mirror.close)
        yield _compose(parts)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What the services are made of: one of each for the whole router."""

    settings: Settings
    reached: Reach
    handshakes: Handshakes | None
    identity: Identity
    store: SqlStore
    contents: FileContents
    clock: Clock
    entropy: Entropy
    bells: Bells
    logs: FileLogs
    blobs: BlobStore
    lifecycle: Lifecycle
    vault: KeyVault
    waiting: WaitingPolicy
    outlooks: Outlooks
    mirror: Mirror


def _parts(
    settings: Settings,
    reached: Reach,
    identity: Identity,
    store: SqlStore,
    contents: FileContents,
    *,
    clock: Clock,
    entropy: Entropy,
) -> _Parts:
    scale, logs = settings.time_scale, FileLogs(settings.data / "logs")
    blobs = BlobStore(settings.data, new_id=lambda: entropy.id("u_"))
    own = frozenset({reached.registry, reached.local.partition("://")[2]})
    waiting = WaitingPolicy(offline_grace=WaitingPolicy().offline_grace * scale)
    return _Parts(
        settings=settings,
        reached=reached,
        handshakes=Handshakes(settings, reached, clock) if reached.own_tls else None,
        identity=identity,
        store=store,
        contents=contents,
        clock=clock,
        entropy=entropy,
        bells=Bells(),
        logs=logs,
        blobs=blobs,
        lifecycle=Lifecycle(policy=_scaled_policy(scale), logs=logs, host=reached.registry),
        vault=KeyVault(identity.key),
        waiting=waiting,
        outlooks=Outlooks(waiting),
        mirror=mirror_of(store, blobs, identity.key, own, clock=clock, entropy=entropy),
    )


def mirror_of(
    store: SqlStore,
    blobs: BlobStore,
    key: bytes,
    own: frozenset[str],
    *,
    clock: Clock,
    entropy: Entropy,
) -> Mirror:
    """Return what gives base images of other registries; `own`: hosts that are none of those."""
    upstreams = HttpUpstreams()
    logins = Logins(
        store=store,
        vault=KeyVault(key),
        upstreams=upstreams,
        clock=clock,
        entropy=entropy,
        own=own,
    )
    return Mirror(store=store, blobs=blobs, logins=logins, upstreams=upstreams, clock=clock)


def _compose(of: _Parts) -> Router:
    runners = _runners(of)
    contexts = Contexts(store=of.store, contents=of.contents, clock=of.clock)
    projects = Projects(store=of.store, clock=of.clock, logs=of.logs, contexts=of.contents)
    authorities = Authorities(
        roots=of.handshakes,
        store=of.store,
        clock=of.clock,
        bells=of.bells,
        expel_all=runners.expel_all,
    )
    endpoints = all_endpoints(_handlers(of, runners, contexts, projects, authorities))
    return Router(
        app=application(
            [
                *(endpoint.route() for endpoint in endpoints),
                openapi_route(endpoints),
                *registry_routes(_registry(of)),
                *welcome_routes(_welcome(of)),
            ],
            Middleware(TellsAuthorities, authorities=authorities),
        ),
        bells=of.bells,
        runners=runners,
        sweep=_sweep(of),
        identity=of.identity,
        projects=projects,
        garbage=_garbage(of),
        contexts=contexts,
        clock=of.clock,
        handshakes=of.handshakes,
        authorities=authorities,
        url=of.reached.url,
    )


def _handlers(
    of: _Parts,
    runners: Runners,
    contexts: Contexts,
    projects: Projects,
    authorities: Authorities,
) -> Handlers:
    authenticate, host = authenticating(of.identity), of.reached.registry
    submissions = _submissions(of)
    events = Events(
        store=of.store, logs=of.logs, bells=of.bells, clock=of.clock, outlooks=of.outlooks
    )
    incoming = DiskIncoming(of.settings.data / "incoming")
    return Handlers(
        builds=BuildHandlers(
            authenticate=authenticate,
            submissions=submissions,
            again=Again(submissions=submissions, store=of.store, bells=of.bells, clock=of.clock),
            reasons=Reasons(
                store=of.store, clock=of.clock, waiting=of.waiting, outlooks=of.outlooks
            ),
            events=events,
        ),
        run=RunHandlers(
            authenticate=authenticate,
            runs=Runs(contexts=contexts, submissions=submissions, incoming=incoming),
            submissions=submissions,
            events=events,
        ),
        contexts=ContextHandlers(authenticate=authenticate, contexts=contexts),
        attempts=AttemptHandlers(
            authenticate=authenticate, attempts=_attempts(of), contexts=contexts
        ),
        runners=RunnerHandlers(authenticate=authenticate, runners=runners),
        projects=ProjectHandlers(
            authenticate=authenticate,
            projects=projects,
            able=_capabilities(of, host),
        ),
        tokens=TokenHandlers(
            authenticate=authenticate, identity=of.identity, tokens=_tokens(of, host)
        ),
        logins=LoginHandlers(authenticate=authenticate, logins=of.mirror.logins),
        authority=AuthorityHandlers(authenticate=authenticate, authorities=authorities),
    )


def _capabilities(of: _Parts, host: str) -> CapabilitiesOf:
    found = of.handshakes
    return CapabilitiesOf(
        store=of.store,
        clock=of.clock,
        host=host,
        roots=found,
        shown=(lambda: ()) if found is None else found.shown,
    )


def _submissions(of: _Parts) -> Submissions:
    return Submissions(
        store=of.store,
        lifecycle=of.lifecycle,
        bells=of.bells,
        logs=of.logs,
        clock=of.clock,
        entropy=of.entropy,
        waiting=of.waiting,
        outlooks=of.outlooks,
        vault=of.vault,
    )


def _attempts(of: _Parts) -> Attempts:
    return Attempts(
        store=of.store,
        lifecycle=of.lifecycle,
        waiting=of.waiting,
        bells=of.bells,
        logs=of.logs,
        clock=of.clock,
        read_blob=lambda digest: of.blobs.read(digest, CONFIG_BYTES_MAX),
        vault=of.vault,
        intakes=Intakes(of.logs),
        steps=Steps(store=of.store, lifecycle=of.lifecycle, logs=of.logs, clock=of.clock),
    )


def _runners(of: _Parts) -> Runners:
    return Runners(
        store=of.store,
        lifecycle=of.lifecycle,
        bells=of.bells,
        clock=of.clock,
        entropy=of.entropy,
        key=of.identity.key,
        vault=of.vault,
        way_in=_way_in(of.reached, of.handshakes),
    )


def _tokens(of: _Parts, host: str) -> Tokens:
    return Tokens(
        store=of.store, identity=of.identity, clock=of.clock, entropy=of.entropy, host=host
    )


def _registry(of: _Parts) -> RegistryHandlers:
    return RegistryHandlers(
        authenticate=authenticating(of.identity),
        registry=Registry(store=of.store, blobs=of.blobs, clock=of.clock),
        passes=Passes(vault=of.vault, clock=of.clock),
        mirror=MirrorHandlers(mirror=of.mirror, own=of.mirror.logins.own),
        realm=f"{of.reached.url}/v2/token",
    )


def _welcome(of: _Parts) -> WelcomeHandlers:
    found = of.handshakes
    return WelcomeHandlers(authority=None if found is None else lambda: found.authority)


def _sweep(of: _Parts) -> Sweep:
    return Sweep(
        store=of.store,
        lifecycle=of.lifecycle,
        bells=of.bells,
        clock=of.clock,
        waiting=of.waiting,
    )


def _garbage(of: _Parts) -> Garbage:
    return Garbage(
        store=of.store,
        blobs=of.blobs,
        logs=of.logs,
        clock=of.clock,
        retention=Retention(
            builds=timedelta(days=of.settings.keep_builds_days),
            logs=timedelta(days=of.settings.keep_logs_days),
        ),
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
