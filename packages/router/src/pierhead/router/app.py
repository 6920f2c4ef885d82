"""The composition root of a control plane: the only place where adapters are named."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import structlog
import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from pierhead.protocol.client.http import is_loopback
from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.problem import problem
from pierhead.router.adapters.clock import SystemClock
from pierhead.router.adapters.entropy import SystemEntropy
from pierhead.router.adapters.folders import lock, secret_file, write_registry_login
from pierhead.router.adapters.logs import FileLogs
from pierhead.router.adapters.process import HereProcess, memory_cap, runner_installed
from pierhead.router.adapters.sql.ledger import SqlStore
from pierhead.router.config import Settings
from pierhead.router.domain.build import LeasePolicy
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.token import OWNER_PREFIX, Owner, Principal, token_hash
from pierhead.router.domain.waiting import WaitingPolicy
from pierhead.router.http.attempts import AttemptHandlers
from pierhead.router.http.builds import BuildHandlers
from pierhead.router.http.registry import RegistryHandlers
from pierhead.router.http.requests import check_protocol, on_refused, token_of
from pierhead.router.http.routes import (
    attempt_endpoints,
    build_endpoints,
    openapi_route,
    project_endpoints,
    registry_routes,
    runner_endpoints,
)
from pierhead.router.http.runners import ProjectHandlers, RunnerHandlers
from pierhead.router.ports import Clock, Entropy
from pierhead.router.services.attempts import Attempts
from pierhead.router.services.bells import Bells
from pierhead.router.services.events import Events
from pierhead.router.services.here import supervise
from pierhead.router.services.identity import Identity
from pierhead.router.services.images import CONFIG_BYTES_MAX
from pierhead.router.services.lifecycle import Lifecycle
from pierhead.router.services.projects import Projects
from pierhead.router.services.registry import Registry
from pierhead.router.services.runners import Runners
from pierhead.router.services.submit import Submissions
from pierhead.router.services.sweep import EVERY_SECONDS, Sweep
from pierhead.router.services.uploads import Uploads
from pierhead.server.blobs import BlobStore
from pierhead.server.log import configure
from pierhead.server.problems import on_bug, on_gone, on_http_exception, on_pierhead_error
from pierhead.server.serve import listen, serve

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A running router: its application and what goes on beside requests."""

    app: Starlette
    bells: Bells
    runners: Runners
    sweep: Sweep
    blobs: BlobStore
    clock: Clock
    url: str


@contextlib.asynccontextmanager
async def open_router(
    settings: Settings,
    url: str,
    *,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> AsyncIterator[Router]:
    """Open everything that a router needs, and close it at the end."""
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    key = secret_file(settings.data / "installation.key", entropy.secret()).encode()
    store = await SqlStore.open(settings.data / "router.db")
    try:
        owner = secret_file(settings.config / "token", OWNER_PREFIX + entropy.secret())
        now = clock.now()
        await store.write(lambda ledger: ledger.add_token(token_hash(owner), Owner(), now))
        host = url.partition("://")[2]
        write_registry_login(settings.config, host, owner)
        yield _compose(settings, url, store, key, clock=clock, entropy=entropy)
    finally:
        await store.close()


def _compose(
    settings: Settings, url: str, store: SqlStore, key: bytes, *, clock: Clock, entropy: Entropy
) -> Router:
    host = url.partition("://")[2]
    scale = settings.time_scale
    policy, bells = _scaled_policy(scale), Bells()
    patience = WaitingPolicy(offline_grace=WaitingPolicy().offline_grace * scale)
    logs = FileLogs(settings.data / "logs")
    blobs = BlobStore(settings.data, new_id=lambda: entropy.id("u_"))
    lifecycle = Lifecycle(policy=policy, logs=logs)
    identity = Identity(store=store, key=key, clock=clock)

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
    )
    attempts = Attempts(
        store=store,
        lifecycle=lifecycle,
        bells=bells,
        logs=logs,
        clock=clock,
        host=host,
        read_blob=lambda digest: blobs.read(digest, CONFIG_BYTES_MAX),
    )
    runners = Runners(
        store=store,
        lifecycle=lifecycle,
        bells=bells,
        clock=clock,
        entropy=entropy,
        key=key,
        address=host,
    )
    uploads = Uploads(store=store, blobs=blobs)
    events = Events(store=store, logs=logs, bells=bells)
    projects = Projects(store=store, clock=clock, entropy=entropy, host=host, key=key)
    endpoints = [
        *build_endpoints(
            BuildHandlers(
                authenticate=authenticate, submissions=submissions, uploads=uploads, events=events
            )
        ),
        *attempt_endpoints(
            AttemptHandlers(authenticate=authenticate, attempts=attempts, blobs=blobs)
        ),
        *runner_endpoints(RunnerHandlers(authenticate=authenticate, runners=runners)),
        *project_endpoints(ProjectHandlers(authenticate=authenticate, projects=projects)),
    ]
    registry = RegistryHandlers(
        authenticate=authenticate,
        registry=Registry(store=store, blobs=blobs),
        realm=f"{url}/v2/token",
    )
    app = Starlette(
        routes=[
            *(endpoint.route() for endpoint in endpoints),
            openapi_route(endpoints),
            *registry_routes(registry),
        ],
        exception_handlers={
            Refused: on_refused,
            PierheadError: on_pierhead_error,
            HTTPException: on_http_exception,
            ClientDisconnect: on_gone,
            Exception: on_bug,
        },
    )
    sweep = Sweep(store=store, lifecycle=lifecycle, bells=bells, clock=clock, waiting=patience)
    return Router(
        app=app, bells=bells, runners=runners, sweep=sweep, blobs=blobs, clock=clock, url=url
    )


def _scaled_policy(scale: float) -> LeasePolicy:
    usual = LeasePolicy()
    return LeasePolicy(
        ttl=usual.ttl * scale, renew_every=usual.renew_every * scale, grace=usual.grace * scale
    )


async def run(settings: Settings) -> None:
    """Run a control plane until a signal comes.

    Raises:
        Unavailable: the port or the data folder is taken, or plain HTTP would leave the machine.
    """
    if not is_loopback(settings.host) and not settings.insecure_http:
        detail = f"plain HTTP on {settings.host} would carry tokens in the clear"
        hint = "listen on 127.0.0.1, or add --insecure-http in a network that you trust"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint))
    holder = lock(settings.data)
    try:
        listener = listen(settings.host, settings.port)
        port = listener.getsockname()[1]
        url = settings.public_url or f"http://{settings.host}:{port}"
        local = f"http://{settings.host}:{port}"
        async with open_router(settings, url) as router:
            await _run(router, settings, listener, local)
    finally:
        os.close(holder)


async def _run(router: Router, settings: Settings, listener: socket.socket, local: str) -> None:
    await router.sweep.recover()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_sweep_for_ever(router))]
        if settings.here and runner_installed():
            tasks.append(group.create_task(_here(router, settings, local)))
        log.info("serve.ready", url=router.url, data=str(settings.data))
        if settings.end_with_input:
            tasks.append(group.create_task(_stop_with_input()))
        if settings.ready_fd is not None:
            os.write(settings.ready_fd, local.encode() + b"\n")
            os.close(settings.ready_fd)
        await serve(router.app, listener, drain=router.bells.drain)
        for task in tasks:
            task.cancel()
    log.info("serve.stopped")


async def _sweep_for_ever(router: Router) -> None:
    hourly = timedelta()
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        try:
            await router.sweep.once()
            hourly -= timedelta(seconds=EVERY_SECONDS)
            if hourly < timedelta():
                hourly = timedelta(hours=1)
                await asyncio.to_thread(router.blobs.sweep, router.clock.now().timestamp())
        except (PierheadError, OSError) as error:
            # A full disk must not end the sweep: it goes on when there is space again.
            log.error("sweep.failed", error=str(error))


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
