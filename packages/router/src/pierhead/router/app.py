"""The composition root of a control plane: the only place where adapters are named."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from socket import socket
from typing import Any, Final

import uvloop
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request

from pierhead.protocol.errors import PierheadError
from pierhead.router.adapters.clock import SystemClock
from pierhead.router.adapters.contents import FileContents
from pierhead.router.adapters.entropy import SystemEntropy
from pierhead.router.adapters.folders import (
    lock,
    replace_secret,
    secret_file,
    write_registry_login,
)
from pierhead.router.adapters.handshakes import Handshakes
from pierhead.router.adapters.incoming import DiskIncoming
from pierhead.router.adapters.logs import FileLogs
from pierhead.router.adapters.process import HereProcess, runner_installed
from pierhead.router.adapters.sql.ledger import SqlStore
from pierhead.router.adapters.vault import KeyVault
from pierhead.router.config import REGISTRY_SOCKET, URL_FILE, Settings, memory_cap
from pierhead.router.domain.build import LeasePolicy
from pierhead.router.domain.credential import USE_STORED_EVERY
from pierhead.router.domain.reach import Reach, proxy_networks, reach
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
from pierhead.router.services.here import supervise
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
from pierhead.router.services.sweep import EVERY_SECONDS, Sweep
from pierhead.router.services.tokens import Tokens
from pierhead.server.addresses import usual_address
from pierhead.server.blobs import BlobStore
from pierhead.server.bounded import Patience
from pierhead.server.door import EVERYBODY, LOOPBACK, Network
from pierhead.server.forwarded import SecureOnly
from pierhead.server.log import configure, get_logger
from pierhead.server.serve import Service, listen, serve

HTTPS_PORT: Final = 443
COLLECT_SECONDS: Final = 3600.0
log = get_logger()


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


async def run(settings: Settings) -> None:
    """Run a control plane until a signal comes.

    Raises:
        Unavailable: the port or the data folder is taken.
        Refused: the settings contradict each other.
    """
    holder = lock(settings.data)
    try:
        first = listen(settings.host, settings.port)
        reached = reach(
            host=settings.host,
            port=first.getsockname()[1],
            usual_address=usual_address(),
            public_url=_public_url(settings),
            behind_proxy=bool(settings.proxies),
            insecure_http=settings.insecure_http,
        )
        port = first.getsockname()[1]
        listeners = [first, *(listen(host, port) for host in reached.hosts[1:])]
        if settings.domain and settings.domain_port not in {None, port}:
            listeners.append(listen(settings.host, settings.domain_port))
        async with open_router(settings, reached) as router:
            await _run(router, settings, reached, listeners)
    finally:
        os.close(holder)


def _public_url(settings: Settings) -> str | None:
    if settings.domain is None:
        return settings.public_url
    port = settings.domain_port or settings.port
    return f"https://{settings.domain}" + (f":{port}" if port != HTTPS_PORT else "")


async def _run(
    router: Router, settings: Settings, reached: Reach, listeners: Sequence[socket]
) -> None:
    await _recover(router)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in _besides(router, settings, reached)]
        log.info("serve.ready", url=reached.url, data=str(settings.data))
        if settings.end_with_input:
            tasks.append(group.create_task(_stop_with_input()))
        if settings.ready_fd is not None:
            os.write(settings.ready_fd, reached.local.encode() + b"\n")
            os.close(settings.ready_fd)
        await serve(_service(router, settings), listeners)
        for task in tasks:
            task.cancel()
    log.info("serve.stopped")


async def _recover(router: Router) -> None:
    """Take up what the last life of this control plane left unfinished."""
    await router.sweep.recover()
    await router.projects.finish_removals()


def _besides(router: Router, settings: Settings, reached: Reach) -> list[Coroutine[Any, Any, None]]:
    """Return what goes on beside requests, each for ever."""
    work = [_sweep_for_ever(router), _collect_for_ever(router)]
    if settings.here and runner_installed():
        work.append(_here(router, settings, reached.local))
    if router.handshakes is not None:
        work.append(router.handshakes.keep())
    return work


def _service(router: Router, settings: Settings) -> Service:
    return Service(
        SecureOnly(router.app, proxy_networks(settings.proxies)),
        drain=router.bells.drain,
        context_for=router.handshakes.context_for if router.handshakes else None,
        clear_for=_clear_for(settings),
        gives_to=settings.data / REGISTRY_SOCKET,
    )


@contextlib.asynccontextmanager
async def guest(settings: Settings, *, listens: bool) -> AsyncIterator[Router]:
    """Run a control plane inside of somebody else's program, for as long as the block lasts.

    It leaves alone what belongs to the program: signals, logging, the event loop's settings. When
    it does not listen itself, the program serves its application, under the public URL.

    Raises:
        Unavailable: the port or the data folder is taken.
        Refused: the settings contradict each other.
    """
    holder = lock(settings.data)
    listeners: list[socket] = []
    try:
        if listens:
            listeners.append(listen(settings.host, settings.port))
        reached = reach(
            host=settings.host,
            port=listeners[0].getsockname()[1] if listeners else settings.port,
            usual_address=usual_address(),
            public_url=settings.public_url,
            behind_proxy=bool(settings.proxies) or not listens,
            insecure_http=settings.insecure_http,
        )
        if listens:
            port = listeners[0].getsockname()[1]
            listeners += [listen(host, port) for host in reached.hosts[1:]]
        async with open_router(settings, reached) as router:
            await _recover(router)
            async with _going_on(router, settings, reached, listeners):
                yield router
    finally:
        for listener in listeners:
            listener.close()
        os.close(holder)


@contextlib.asynccontextmanager
async def _going_on(
    router: Router, settings: Settings, reached: Reach, listeners: Sequence[socket]
) -> AsyncIterator[None]:
    """Keep going what a router does beside requests. An error there is not the program's."""
    service = _service(router, settings)
    tasks = [asyncio.create_task(work) for work in _besides(router, settings, reached)]
    serving = [asyncio.create_task(service.run(listeners))] if listeners else []
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        service.stop()
        for ended in await asyncio.gather(*tasks, *serving, return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("guest.task-failed", error=repr(ended))


def _clear_for(settings: Settings) -> tuple[Network, ...]:
    """Return from where plain HTTP is answered."""
    if settings.insecure_http:
        return EVERYBODY
    return (*LOOPBACK, *proxy_networks(settings.proxies))


async def _sweep_for_ever(router: Router) -> None:
    minutely = USE_STORED_EVERY
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        try:
            await router.sweep.once()
            minutely -= timedelta(seconds=EVERY_SECONDS)
            if minutely < timedelta():
                minutely = USE_STORED_EVERY
                await router.identity.store_uses()
        except (PierheadError, OSError) as error:
            # A full disk must not end the sweep: it goes on when there is space again.
            log.error("sweep.failed", error=str(error))


async def _collect_for_ever(router: Router) -> None:
    while True:
        try:
            collected = dataclasses.asdict(await router.garbage.once())
            if any(collected.values()):
                log.info("garbage.collected", **collected)
            await router.contexts.sweep()
        except (PierheadError, OSError) as error:
            log.error("garbage.failed", error=str(error))
        await asyncio.sleep(COLLECT_SECONDS)


async def _stop_with_input() -> None:
    """Whoever started us holds our input open; when it ends, stop as if asked to."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    os.kill(os.getpid(), signal.SIGTERM)


async def _here(router: Router, settings: Settings, local: str) -> None:
    state = settings.data / "here"
    state.mkdir(exist_ok=True, mode=0o700)
    orders = {
        "url": local,
        "credential": await router.runners.enroll_here(),
        "state_dir": str(state),
        "memory_bytes": memory_cap(),
        "cpu_weight": 1,
    }
    log_file = settings.data / "here.log"
    await supervise(lambda line: HereProcess.start(line, log_file), orders)


def main(settings: Settings) -> None:
    """Run a control plane in this process until a signal comes."""
    configure()
    # The event loop and the SQL threads hand work to each other several times in a request. With
    # the usual 5 ms between switches, each hand-over may wait that long for the other thread.
    sys.setswitchinterval(0.0002)
    uvloop.run(run(settings))
