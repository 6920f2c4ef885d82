"""The processes of a control plane: one of its own, or a guest in somebody else's program."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from socket import socket
from typing import Any, Final

import uvloop

from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.router.adapters.folders import lock
from pierhead.router.adapters.process import HereProcess, runner_installed
from pierhead.router.attendance import until_unused
from pierhead.router.compose import Router, open_router
from pierhead.router.config import REGISTRY_SOCKET, Settings, memory_cap
from pierhead.router.domain.credential import USE_STORED_EVERY
from pierhead.router.domain.reach import Reach, proxy_networks, reach, url_of_domain
from pierhead.router.domain.retention import collects_after
from pierhead.router.services.here import supervise
from pierhead.router.services.sweep import EVERY
from pierhead.router.usable import require_folders
from pierhead.server.addresses import usual_address
from pierhead.server.disk import require_usable
from pierhead.server.door import EVERYBODY, LOOPBACK, Network
from pierhead.server.forwarded import SecureOnly
from pierhead.server.log import configure, get_logger
from pierhead.server.serve import Service, listen, serve

COLLECT_EVERY: Final = timedelta(hours=1)
log = get_logger()


async def run(settings: Settings) -> None:
    """Run a control plane until a signal comes.

    Raises:
        Unavailable: the port or the data folder is taken, or cannot be used.
        Refused: the settings contradict each other.
    """
    require_folders(settings.data, settings.config)
    holder = lock(settings.data)
    if settings.held_fd is not None:
        os.set_inheritable(settings.held_fd, False)  # it ends with us, not with what we start
    try:
        first = _listen(settings)
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


def _listen(settings: Settings) -> socket:
    """Return the first listener. Whoever started us for now is told the port: another one will do.

    Raises:
        Unavailable: the port is taken, or the address is not ours.
    """
    try:
        return listen(settings.host, settings.port)
    except Unavailable:
        if not settings.end_with_input:
            raise
        return listen(settings.host, 0)


def _public_url(settings: Settings) -> str | None:
    if settings.domain is None:
        return settings.public_url
    return url_of_domain(settings.domain, settings.domain_port or settings.port)


async def _run(
    router: Router, settings: Settings, reached: Reach, listeners: Sequence[socket]
) -> None:
    away = await _recover(router)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in _besides(router, settings, reached, away)]
        log.info("serve.ready", url=reached.url, data=str(settings.data))
        if not reached.names_images:
            hint = "give it a name: --public-url https://build.example.com"
            log.warning("serve.names-no-images", url=reached.url, hint=hint)
        if settings.end_with_input:
            tasks.append(group.create_task(_stop_with_input(router, settings.data)))
        if settings.ready_fd is not None:
            os.write(settings.ready_fd, reached.local.encode() + b"\n")
            os.close(settings.ready_fd)
        await serve(_service(router, settings), listeners)
        for task in tasks:
            task.cancel()
    log.info("serve.stopped")


async def _recover(router: Router) -> timedelta:
    """Take up what the last life of this control plane left, and return how long ago that was."""
    away = await router.sweep.recover()
    await router.projects.finish_removals()
    return away


def _besides(
    router: Router, settings: Settings, reached: Reach, away: timedelta
) -> list[Coroutine[Any, Any, None]]:
    """Return what goes on beside requests, each for ever."""
    rested = collects_after(away)
    work = [
        _repeat(lambda: _sweep(router), EVERY, after=EVERY, failed="sweep.failed"),
        _repeat(router.identity.store_uses, USE_STORED_EVERY, failed="uses.not-stored"),
        _repeat(lambda: _collect(router), COLLECT_EVERY, after=rested, failed="garbage.failed"),
        _repeat(router.authorities.on_time, EVERY, failed="authority.change-failed"),
    ]
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
        gateway=router.handshakes.gateway() if router.handshakes else None,
    )


@contextlib.asynccontextmanager
async def guest(settings: Settings, *, listens: bool) -> AsyncIterator[Router]:
    """Run a control plane inside of somebody else's program, for as long as the block lasts.

    It leaves alone what belongs to the program: signals, logging, the event loop's settings. When
    it does not listen itself, the program serves its application, under the public URL.

    Raises:
        Unavailable: the port or the data folder is taken, or cannot be used.
        Refused: the settings contradict each other.
    """
    require_usable(settings.data, elsewhere="EmbeddedRouter(data_dir=...)")
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
            away = await _recover(router)
            async with _going_on(router, settings, reached, listeners, away):
                yield router
    finally:
        for listener in listeners:
            listener.close()
        os.close(holder)


@contextlib.asynccontextmanager
async def _going_on(
    router: Router,
    settings: Settings,
    reached: Reach,
    listeners: Sequence[socket],
    away: timedelta,
) -> AsyncIterator[None]:
    """Keep going what a router does beside requests. An error there is not the program's."""
    service = _service(router, settings)
    tasks = [asyncio.create_task(work) for work in _besides(router, settings, reached, away)]
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


async def _repeat(
    work: Callable[[], Awaitable[None]],
    every: timedelta,
    *,
    failed: str,
    after: timedelta = timedelta(),
) -> None:
    """Do something for ever: a full disk must not end it, it goes on when there is space again.

    `failed`: the event by which a failure is logged; once for as long as it stays the same.
    `after`: how long it waits for its first turn.
    """
    said = ""
    await asyncio.sleep(after.total_seconds())
    while True:
        try:
            await work()
            said = ""
        except (PierheadError, OSError) as error:
            if str(error) != said:
                said = str(error)
                log.error(failed, error=said)
        await asyncio.sleep(every.total_seconds())


async def _sweep(router: Router) -> None:
    await router.sweep.recover_from_sleep()
    await router.sweep.once()
    await router.garbage.uploads()


async def _collect(router: Router) -> None:
    collected = dataclasses.asdict(await router.garbage.once())
    if any(collected.values()):
        log.info("garbage.collected", **collected)
    await router.contexts.sweep()


async def _stop_with_input(router: Router, data: Path) -> None:
    """Whoever started us holds our input open; when it ends, and nobody else uses us, stop."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    await until_unused(data, router.sweep.anything_open)
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
