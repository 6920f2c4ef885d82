"""What answers handshakes: the own authority's certificate, and that of the public name."""

import asyncio
import ssl
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from pierhead.router.config import Settings
from pierhead.router.domain.authority import (
    Announced,
    Authority,
    Root,
    Steady,
    Switched,
    newest,
)
from pierhead.router.domain.concern import Shown
from pierhead.router.domain.errors import NotReady
from pierhead.router.domain.reach import Reach
from pierhead.router.ports.system import Clock
from pierhead.server.acme import Kind
from pierhead.server.addresses import own_names
from pierhead.server.authority import Pair, fingerprint, lifetime, new_authority, vouch
from pierhead.server.gateway import Gateway
from pierhead.server.log import get_logger
from pierhead.server.public_name import Domain, DomainCertificate, asks_for_proof
from pierhead.server.tls import Certificates, Signing

CHECK_SECONDS: Final = 60.0
# What one root says for the other ends so long after the phase that it is for.
LATE_AT_MOST: Final = timedelta(hours=1)
log = get_logger()


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored beside the certificates; all else follows from them."""

    since: datetime
    after: timedelta


class Handshakes:
    """The certificates of one control plane."""

    def __init__(self, settings: Settings, reached: Reach, clock: Clock) -> None:
        folder, self._reached, self._clock = settings.data / "tls", reached, clock
        self._folder, self._domain = folder, settings.domain
        self._own = Certificates(folder, self._names(), now=clock.now())
        self._public = _public(settings, folder, clock)
        if self._public is not None:
            self._public.attach(self._own.context)
        self._made: dict[str, Pair] = {}  # by their pin: roots that count for nothing yet
        self._config = settings.config
        self._state = state_of(self._own.signing)
        self._publish()

    @property
    def authority(self) -> bytes:
        """The certificate of the own authority, PEM; with that of another one beside it."""
        return self._own.authority

    @property
    def state(self) -> Authority:
        """How far the change of the authority for another one is."""
        return self._state

    def make(self) -> Root:
        """Make a root, which counts for nothing until it is entered."""
        made = new_authority(f"pierhead {self._reached.name}", now=self._clock.now())
        root = _root(made.certificate)
        self._made = {root.pin: made}
        return root

    def enter(self, state: Authority) -> None:
        """Go on to a state that follows from the one that there is."""
        found = self._own.signing
        match state:
            case Announced(coming=coming):
                signs, beside = found.signs, self._made[coming.pin]
                issuer = beside
            case Switched():
                assert found.beside is not None, "it was announced before"
                signs, beside = found.beside, Pair(b"", found.signs.certificate)
                issuer = found.signs
            case Steady():
                self._change(Signing(signs=found.signs))
                return
        until = state.until + LATE_AT_MOST
        vouched = vouch(issuer, signs.certificate, now=self._clock.now(), until=until)
        note = msgspec.json.encode(_Note(since=state.since, after=state.after)).decode()
        self._change(Signing(signs=signs, beside=beside, vouched=vouched, note=note))

    def begin_anew(self, state: Steady) -> None:
        """Let a root count that was made, and nothing else that was before."""
        signing = Signing(signs=self._made[state.root.pin])
        try:
            self._own.begin_anew(signing, self._names(), now=self._clock.now())
        finally:
            self._look()
        self._publish()

    def _change(self, signing: Signing) -> None:
        try:
            self._own.change(signing, self._names(), now=self._clock.now())
        finally:  # what is stored counts, also when the disk was full a moment later
            self._look()
        self._publish()

    def _look(self) -> None:
        self._made = {}
        self._state = state_of(self._own.signing)

    def _publish(self) -> None:
        """Write what docker reads as /etc/docker/certs.d/HOST/ca.crt, and `PIERHEAD_CA` names."""
        fresh = self._config / "ca.crt.new"
        fresh.write_bytes(self.authority)
        fresh.replace(self._config / "ca.crt")

    def pins(self) -> tuple[str | None, str]:
        """Return what join codes say: the pin of the authority that stays, and of the server's key.

        Nothing, where the authorities of the system vouch for the public name.

        Raises:
            NotReady: the public name has no certificate yet.
        """
        if self._public is None:
            return newest(self._state).pin, self._own.key_pin
        if not self._public.is_there:
            hint = "pierhead up says why it is not there"
            raise NotReady(f"there is no certificate for {self._reached.name} yet", hint=hint)
        return None, ""

    def shown(self) -> tuple[Shown, ...]:
        """Return the certificates that handshakes show, as long as each is good."""
        again = "pierhead up, and read the control plane's log: certificate.renewal-failed"
        name, own = self._reached.name, self._own.shown
        if self._public is None:
            return (_shown(name, own, again),)
        return (_shown(name, self._public.shown, "pierhead up says why"),)

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


def state_of(signing: Signing) -> Authority:
    """Return the state that stored certificates are in."""
    root, beside = _root(signing.signs.certificate), signing.beside
    if beside is None:
        return Steady(root)
    note = msgspec.json.decode(signing.note, type=_Note)
    kind = Announced if beside.key else Switched
    return kind(root, _root(beside.certificate), note.since, note.after)


def _root(certificate: bytes) -> Root:
    return Root(fingerprint(certificate), *lifetime(certificate))


def _shown(name: str, certificate: bytes | None, remedy: str) -> Shown:
    made, ends = (None, None) if certificate is None else lifetime(certificate)
    return Shown(name=name, made_at=made, ends_at=ends, remedy=remedy)


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
