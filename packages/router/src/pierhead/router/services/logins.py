"""The owner's logins at other registries: tried when they are added, locked, never shown again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pierhead.protocol.registry import (
    LoginKind,
    NewRegistry,
    RegistryAdded,
    RegistryPage,
    RegistryView,
)
from pierhead.router.domain.errors import (
    InvalidRequest,
    LimitReached,
    NotFound,
    SecretsLost,
    UpstreamRefused,
    UpstreamSilent,
)
from pierhead.router.domain.token import Principal, require_owner
from pierhead.router.domain.upstream import (
    Image,
    Login,
    login_for,
    named_image,
    registry_host,
)
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock, Entropy
from pierhead.router.ports.upstreams import Upstream, Upstreams
from pierhead.router.ports.vault import Vault
from pierhead.router.services.views import written

LOGINS_MAX: Final = 200
SECRET: Final = "secret"  # noqa: S105 - a name in the vault


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """What the owner may do with logins, and which one counts for whom.

    `own`: the hosts of this control plane's registry, which need none.
    """

    store: Store
    vault: Vault
    upstreams: Upstreams
    clock: Clock
    entropy: Entropy
    own: frozenset[str]

    async def page(self, principal: Principal) -> RegistryPage:
        """Return all registries that were added."""
        require_owner(principal)
        found = await self.store.read(lambda ledger: ledger.logins())
        return RegistryPage(registries=tuple(_view(login) for login in found))

    async def add(self, principal: Principal, wanted: NewRegistry) -> RegistryAdded:
        """Try a login and keep it; one that does not work is not kept.

        Raises:
            InvalidRequest: a secret without a name or the other way round, or our own registry.
            NotFound: there is no such project.
            UpstreamRefused: the registry does not accept it, or does not answer.
            UpstreamMissing: it has not the image.
        """
        require_owner(principal)
        login, image = self._login(wanted), _image(wanted)
        known = await self.store.read(lambda ledger: self._known(ledger, login))
        trial = _upstream(login, wanted.secret, [*known, login])
        kind = await self._try(trial, image)
        values = {SECRET: wanted.secret.encode()} if wanted.secret is not None else {}
        locked = self.vault.lock(_locked_for(login), values)

        def operation(ledger: Ledger) -> None:
            self._known(ledger, login)
            ledger.save_login(login, locked)

        await self.store.write(operation)
        pulled = str(image) if image is not None else None
        return RegistryAdded(registry=_view(login), login=kind, pulled=pulled)

    async def _try(self, trial: Upstream, image: Image | None) -> LoginKind:
        try:
            kind = await self.upstreams.try_login(trial)
            if image is not None:
                await self.upstreams.digest(trial, image)
        except UpstreamSilent as error:
            # Nothing of ours is broken: what was asked for cannot be done as it was said.
            raise UpstreamRefused(str(error), hint=error.hint) from error
        return kind

    async def remove(self, principal: Principal, host: str, project: str | None) -> RegistryView:
        """Forget a login and all that was seen under it.

        Raises:
            NotFound: there is none.
        """
        require_owner(principal)
        named = registry_host(host)
        gone = await self.store.write(lambda ledger: ledger.drop_login(named, project or ""))
        if gone is None:
            whose = f" for {project}" if project else ""
            raise NotFound(f"{named} was not added{whose}", hint="see pierhead registries ls")
        return _view(gone)

    async def upstream(self, host: str, project: str) -> Upstream:
        """Return a registry as builds of a project ask it.

        Raises:
            UpstreamSilent: its login cannot be read any more.
        """

        def operation(ledger: Ledger) -> tuple[Sequence[Login], Login | None, dict[str, bytes]]:
            found = ledger.logins()
            login = login_for(found, host, project)
            locked = ledger.locked_login(login.id) if login is not None else {}
            return found, login, dict(locked)

        found, login, locked = await self.store.read(operation)
        if login is None:
            return Upstream(
                host=host, allowed=_allowed(found, project), plain=_plain(found, project)
            )
        try:
            values = self.vault.unlock(_locked_for(login), locked)
        except SecretsLost as error:
            hint = f"give it again: pierhead registries add {host} --username NAME"
            raise UpstreamSilent(f"the login for {host} cannot be read", hint=hint) from error
        secret = values[SECRET].decode() if SECRET in values else None
        return _upstream(login, secret, found)

    def _login(self, wanted: NewRegistry) -> Login:
        host = registry_host(wanted.host)
        if host in self.own:
            detail = f"{host} is this control plane's own registry: builds get in without a login"
            raise InvalidRequest(detail)
        if (wanted.username is None) != (wanted.secret is None):
            hint = "give both, or neither to only allow the registry"
            raise InvalidRequest("a login is a username and a secret", hint=hint)
        return Login(
            id=self.entropy.id("l_"),
            host=host,
            project=wanted.project or "",
            username=wanted.username,
            plain_http=wanted.plain_http,
            ca=wanted.ca,
            added_at=self.clock.now(),
        )

    @staticmethod
    def _known(ledger: Ledger, login: Login) -> Sequence[Login]:
        """Return the logins there are, if one more may be added."""
        if login.project and ledger.project(login.project) is None:
            hint = f"make it first: pierhead projects add {login.project}"
            raise NotFound(f"there is no project {login.project}", hint=hint)
        found = ledger.logins()
        if len(found) >= LOGINS_MAX:
            raise LimitReached(f"there are {LOGINS_MAX} registries already")
        return found


def _image(wanted: NewRegistry) -> Image | None:
    host = registry_host(wanted.host)
    return named_image(host, wanted.image) if wanted.image is not None else None


def _upstream(login: Login, secret: str | None, all_logins: Sequence[Login]) -> Upstream:
    return Upstream(
        host=login.host,
        scope=login.id,
        username=login.username,
        secret=secret,
        plain_http=login.plain_http,
        ca=login.ca,
        allowed=_allowed(all_logins, login.project),
        plain=_plain(all_logins, login.project),
    )


def _allowed(logins: Sequence[Login], project: str) -> frozenset[str]:
    """Return the hosts that the owner named for a project, or for all."""
    return frozenset(one.host for one in logins if one.project in {"", project})


def _plain(logins: Sequence[Login], project: str) -> frozenset[str]:
    """Return the hosts of which the owner said, for a project or for all, that they have no TLS."""
    return _allowed([one for one in logins if one.plain_http], project)


def _locked_for(login: Login) -> str:
    return f"registry {login.host} {login.project} {login.id}"


def _view(login: Login) -> RegistryView:
    return RegistryView(
        host=login.host,
        project=login.project or None,
        username=login.username,
        plain_http=login.plain_http,
        own_ca=login.ca is not None,
        added_at=written(login.added_at),
    )
