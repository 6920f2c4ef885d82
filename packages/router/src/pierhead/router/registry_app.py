"""The composition root of the registry in a process of its own: `serve --only registry`.

The control plane gives it the connections whose requests are for `/v2/`, so that leases never wait
behind blobs; both use the same database and the same blobs, and either may be restarted alone.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import uvloop

from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.problem import problem
from pierhead.router.adapters.clock import SystemClock
from pierhead.router.adapters.entropy import SystemEntropy
from pierhead.router.adapters.folders import lock
from pierhead.router.adapters.sql.ledger import SqlStore
from pierhead.router.adapters.vault import KeyVault
from pierhead.router.compose import mirror_of
from pierhead.router.config import REGISTRY_SOCKET, URL_FILE, Settings
from pierhead.router.domain.reach import proxy_networks
from pierhead.router.http.application import application, authenticating
from pierhead.router.http.mirror import MirrorHandlers
from pierhead.router.http.registry import RegistryHandlers
from pierhead.router.http.routes import registry_routes
from pierhead.router.services.identity import Identity
from pierhead.router.services.passes import Passes
from pierhead.router.services.registry import Registry
from pierhead.server.blobs import BlobStore
from pierhead.server.forwarded import SecureOnly
from pierhead.server.log import configure, get_logger
from pierhead.server.serve import Service, serve

TIDY_SECONDS: Final = 60.0
NICENESS: Final = 10  # a heartbeat goes before a layer, on a machine that has no time for both
log = get_logger()


async def run(settings: Settings) -> None:
    """Serve the registry until a signal comes.

    Raises:
        Unavailable: there is no control plane on the data folder yet, or such a process already.
    """
    url, key = _of_control_plane(settings)
    holder = lock(settings.data, "registry")
    try:
        store = await SqlStore.open(settings.database or settings.data / "router.db")
        try:
            await _serve(settings, store, url, key)
        finally:
            await store.close()
    finally:
        os.close(holder)


def _of_control_plane(settings: Settings) -> tuple[str, bytes]:
    """Return what the control plane is reached by, and the key of its tokens."""
    try:
        url = (settings.data / URL_FILE).read_text()
        return url, (settings.data / "installation.key").read_text().strip().encode()
    except FileNotFoundError as error:
        detail = f"no control plane has run on {settings.data}"
        hint = "start it first: pierhead serve"
        raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error


async def _serve(settings: Settings, store: SqlStore, url: str, key: bytes) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    identity = Identity(store=store, clock=clock, key=key)
    blobs = BlobStore(settings.data, new_id=lambda: entropy.id("u_"))
    own = frozenset({url.partition("://")[2]})
    mirror = mirror_of(store, blobs, key, own, clock=clock, entropy=entropy)
    handlers = RegistryHandlers(
        authenticate=authenticating(identity),
        registry=Registry(store=store, blobs=blobs, clock=clock),
        passes=Passes(vault=KeyVault(key), clock=clock),
        mirror=MirrorHandlers(mirror=mirror, own=own),
        realm=f"{url}/v2/token",
    )
    app = application(registry_routes(handlers))
    secure = SecureOnly(app, proxy_networks(settings.proxies))
    service = Service(secure, drain=lambda: None, takes_at=settings.data / REGISTRY_SOCKET)
    async with _tidied(identity, blobs, clock):
        log.info("registry.ready", url=url, data=str(settings.data))
        await serve(service, [])
    await mirror.close()
    log.info("registry.stopped")


@asynccontextmanager
async def _tidied(identity: Identity, blobs: BlobStore, clock: SystemClock) -> AsyncIterator[None]:
    """Store when tokens were used, and forget uploads that ended elsewhere, every minute."""

    async def for_ever() -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                await identity.store_uses()
                await asyncio.to_thread(blobs.sweep, clock.now().timestamp())
            except (PierheadError, OSError) as error:
                log.error("tidy.failed", error=str(error))

    task = asyncio.create_task(for_ever())
    try:
        yield
    finally:
        task.cancel()
        await identity.store_uses()


def main(settings: Settings) -> None:
    """Serve the registry in this process until a signal comes."""
    configure()
    sys.setswitchinterval(0.0002)  # as the control plane does: threads hand work to each other
    os.nice(NICENESS)
    uvloop.run(run(settings))
