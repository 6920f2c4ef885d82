"""What `pierhead up` was told, once and for all: what is said now changes what was said before.

Nothing here asks the machine; what cannot be answered at once is refused.
"""

import msgspec
from msgspec import Struct

from pierhead.protocol.loopback import is_loopback
from pierhead.router.config import ALL_ADDRESSES, DEFAULT_PORT, LETS_ENCRYPT
from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.domain.reach import HTTPS_PORT, url_of_domain


class Chosen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What counts."""

    port: int = DEFAULT_PORT
    host: str = ALL_ADDRESSES
    public_url: str | None = None
    behind_proxy: tuple[str, ...] = ()
    domain: str | None = None
    domain_port: int = HTTPS_PORT  # 0: `port`
    acme: str = LETS_ENCRYPT

    @property
    def told_url(self) -> str | None:
        """How others reach it, as it was said; none: by an address of the machine."""
        if self.domain is None:
            return self.public_url
        return url_of_domain(self.domain, self.domain_port or self.port)


class Said(Struct, frozen=True, kw_only=True):
    """What is said now. None: nothing of that; what is empty takes back what was said before."""

    port: int | None = None
    host: str | None = None
    public_url: str | None = None
    domain: str | None = None
    acme: str | None = None
    behind_proxy: tuple[str, ...] | None = None


def choose(noted: Chosen, said: Said) -> Chosen:
    """Return what counts from now on.

    A name of its own, a proxy's and an address of others exclude each other; the one that is said
    last counts.

    Raises:
        InvalidRequest: two of them are said at once.
    """
    _require_one_name(noted, said)
    chosen = noted
    if said.behind_proxy is not None or (said.domain and noted.behind_proxy):
        chosen = _with_proxy(chosen, said.behind_proxy or ())
    if said.domain is not None:
        public_url = None if said.domain else chosen.public_url
        chosen = msgspec.structs.replace(chosen, domain=said.domain or None, public_url=public_url)
    if said.public_url is not None:
        chosen = msgspec.structs.replace(chosen, public_url=said.public_url or None)
    named = {"port": said.port, "host": said.host, "acme": said.acme}
    given = {key: value for key, value in named.items() if value is not None}
    return msgspec.structs.replace(chosen, **given)


def _require_one_name(noted: Chosen, said: Said) -> None:
    if said.domain and said.behind_proxy:
        hint = f"behind a proxy, say --public-url https://{said.domain}"
        raise InvalidRequest("a certificate by ACME is for who answers the name itself", hint=hint)
    domain = noted.domain if said.domain is None and not said.behind_proxy else said.domain
    if domain and said.public_url:
        detail = f"it is reached by {domain}, so no other address can be told"
        hint = f"pierhead up --domain '' --public-url {said.public_url}"
        raise InvalidRequest(detail, hint=hint)


def _with_proxy(chosen: Chosen, networks: tuple[str, ...]) -> Chosen:
    """Return what counts with another proxy, or without one. It has the certificate of the name."""
    if networks:
        return msgspec.structs.replace(chosen, behind_proxy=networks, host="127.0.0.1", domain=None)
    if not chosen.behind_proxy:
        return chosen
    host = ALL_ADDRESSES if is_loopback(chosen.host) else chosen.host
    return msgspec.structs.replace(chosen, behind_proxy=(), host=host, public_url=None)
