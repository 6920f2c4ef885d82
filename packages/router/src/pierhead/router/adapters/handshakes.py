"""What answers handshakes: the own authority's certificate, and that of the public name."""

import asyncio
import ssl
from pathlib import Path
from typing import Final

from pierhead.router.config import Settings
from pierhead.router.domain.errors import NotReady
from pierhead.router.domain.reach import Reach
from pierhead.router.ports.system import Clock
from pierhead.server.acme import Kind
from pierhead.server.addresses import own_names
from pierhead.server.gateway import Gateway
from pierhead.server.log import get_logger
from pierhead.server.public_name import Domain, DomainCertificate, asks_for_proof
from pierhead.server.tls import Certificates

CHECK_SECONDS: Final = 60.0
log = get_logger()


class Handshakes:
    """The certificates of one control plane."""

    def __init__(self, settings: Settings, reached: Reach, clock: Clock) -> None:
        folder, self._reached, self._clock = settings.data / "tls", reached, clock
        self._folder, self._domain = folder, settings.domain
        self._own = Certificates(folder, self._names(), now=clock.now())
        self._public = _public(settings, folder, clock)
        if self._public is not None:
            self._public.attach(self._own.context)

    @property
    def authority(self) -> bytes:
        """The certificate of the own authority, PEM."""
        return self._own.authority

    def pins(self) -> tuple[str | None, str]:
        """Return what join codes say: the pin of the authority, and of the server's key.

        Nothing, where the authorities of the system vouch for the public name.

        Raises:
            NotReady: the public name has no certificate yet.
        """
        if self._public is None:
            return self._own.pin, self._own.key_pin
        if not self._public.is_there:
            hint = "pierhead up says why it is not there"
            raise NotReady(f"there is no certificate for {self._reached.name} yet", hint=hint)
        return None, ""

    def context_for(self, hello: bytes) -> ssl.SSLContext:
        """Return what answers a handshake that begins so."""
        if self._public is None:
            return self._own.context
        return self._public.context_for(hello, self._own.context)

    def gateway(self) -> Gateway:
        """Return what leaves handshakes to a process of their own.

        All but the proofs of a name: what those are answered with is in this process alone.
        """
        return Gateway(self._folder, self._domain, stays=asks_for_proof)

    async def keep(self) -> None:
        """Renew what has to be renewed, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_own())
            if self._public is not None:
                group.create_task(self._public.keep())

    async def _keep_own(self) -> None:
        """Make the own certificate anew in time, and when this machine got another address."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                if self._own.renew(self._names(), now=self._clock.now()):
                    log.info("certificate.renewed")
            except OSError as error:
                log.error("certificate.renewal-failed", error=str(error))

    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self._reached.name, *own_names()]))


def _public(settings: Settings, folder: Path, clock: Clock) -> DomainCertificate | None:
    if settings.domain is None:
        return None
    # Who checks a name by a handshake comes to port 443, and nowhere else.
    kind: Kind = "http-01" if settings.domain_port is None else "tls-alpn-01"
    domain = Domain(
        name=settings.domain,
        directory=settings.acme,
        kind=kind,
        web_port=settings.web_port,
    )
    return DomainCertificate(folder, domain, clock.now)
