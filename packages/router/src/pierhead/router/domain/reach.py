"""How a control plane is reached: its address, and by what its visitors know it.

listens on          has          address                      pin in join codes
loopback            nothing      http://127.0.0.1:PORT        none
anything else       own CA       https://ADDRESS:PORT         the CA's
loopback, networks  a proxy      https://NAME, as was said    none: the system's authorities
anything            nothing      http://ADDRESS:PORT          none; only when asked for by name
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pierhead.protocol.loopback import is_loopback
from pierhead.router.domain.errors import InvalidRequest

# A registry has to be at the root of a host, so there is no path.
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:(?P<port>[0-9]{1,5}))?/?\Z"
)
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")
NAME_MAX: Final = 253
PORT_MAX: Final = 65535
HTTPS_PORT: Final = 443
WILDCARDS: Final = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not listened on


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where a control plane listens, and what it says of itself."""

    url: str  # how others reach it
    local: str  # how processes of its own machine do
    hosts: tuple[str, ...]  # to listen on
    own_tls: bool  # it answers handshakes, with certificates of its own authority

    @property
    def registry(self) -> str:
        """The host of image references: clients leave out the usual port."""
        return self.url.partition("://")[2]

    @property
    def address(self) -> str:
        """The `host:port` of join codes."""
        if _parts(self.url)["port"] is not None:
            return self.registry
        return f"{self.registry}:{HTTPS_PORT if self.url.startswith('https:') else 80}"

    @property
    def name(self) -> str:
        """The host name or address that certificates have to have."""
        return str(_parts(self.url)["host"]).strip("[]")

    @property
    def names_images(self) -> bool:
        """Whether its address can stand at the beginning of an image's name: no IPv6 one can."""
        return ":" not in self.name


def reach(
    *,
    host: str,
    port: int,
    usual_address: str | None,
    public_url: str | None = None,
    behind_proxy: bool = False,
    insecure_http: bool = False,
) -> Reach:
    """Find out how a control plane is reached.

    `usual_address` is the machine's own towards elsewhere, if it has one.

    Raises:
        InvalidRequest: the public URL cannot be one, or a proxy is there without one.
    """
    alone = is_loopback(host)
    if public_url is not None:
        check_public_url(public_url)
    elif behind_proxy:
        hint = "add --public-url https://NAME, the address that the proxy answers"
        raise InvalidRequest("behind a proxy the control plane cannot know its address", hint=hint)
    own_tls = not (alone or behind_proxy or insecure_http)
    found = usual_address if host in WILDCARDS else host
    url = public_url
    if url is None:
        url = f"{'https' if own_tls else 'http'}://{bracketed(found)}:{port}" if found else None
    hosts = (host,) if alone or host in WILDCARDS else (host, "127.0.0.1")
    local = f"http://{bracketed(host if alone else '127.0.0.1')}:{port}"
    return Reach(url=(url or local).rstrip("/"), local=local, hosts=hosts, own_tls=own_tls)


def check_public_url(url: str) -> None:
    """Let an address pass by which others may reach a control plane, and name its images.

    Raises:
        InvalidRequest: it is none, or docker, skopeo and `FROM` would not find an image by it.
    """
    host, port = _parts(url)["host"], _parts(url)["port"]
    hint = "say a name that leads to the machine: https://build.example.com"
    if host.startswith("["):
        detail = f"docker, skopeo and FROM take no image name that begins with {host}"
        raise InvalidRequest(detail, hint=hint)
    if not all(map(_LABEL.match, host.split("."))) or not 0 < int(port or HTTPS_PORT) <= PORT_MAX:
        raise InvalidRequest(f"no host has the address {url[:80]}", hint=hint)
    if port is None and _is_of_docker_io(host):
        detail = f"docker, skopeo and FROM look for {host}/... at docker.io"
        usual = HTTPS_PORT if url.startswith("https:") else 80
        raise InvalidRequest(detail, hint=f"say its port as well: {url.rstrip('/')}:{usual}")


def url_of_domain(domain: str, port: int) -> str:
    """Return the address of a control plane that answers a public name at a port."""
    may_lack_it = port == HTTPS_PORT and not _is_of_docker_io(domain)
    return f"https://{domain}" + ("" if may_lack_it else f":{port}")


def _is_of_docker_io(host: str) -> bool:
    """Say whether an image's name that begins with a host alone is taken for docker.io's."""
    return "." not in host and host != "localhost"


def public_name(text: str) -> str:
    """Return a name that a certificate by ACME can be for.

    Raises:
        InvalidRequest: it is an address, or no name of the DNS.
    """
    labels = text.split(".")
    if len(text) > NAME_MAX or not all(map(_LABEL.match, labels)) or labels[-1].isdigit():
        raise InvalidRequest(f"{text[:80]!r} is not a name of the DNS", hint="build.example.com")
    return text


def proxy_networks(
    said: Sequence[str],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Return the networks that a reverse proxy comes from.

    Raises:
        InvalidRequest: one of them is none.
    """
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in said)
    except ValueError as error:
        hint = "name the address that the proxy comes from: --behind-proxy 127.0.0.1"
        raise InvalidRequest(f"not a network: {error}", hint=hint) from error


def bracketed(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _parts(url: str) -> re.Match[str]:
    found = _URL.match(url)
    if found is None:
        hint = "write it like https://build.example.com: a registry is at the root of a host"
        raise InvalidRequest(f"not an address of a control plane: {url}", hint=hint)
    return found
