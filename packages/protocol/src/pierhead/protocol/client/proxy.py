"""Which proxy a request goes through: one answer for every process of this machine.

`HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY` name it, `NO_PROXY` names whom it is not for, as curl
reads them: `*`, a host, a domain with all below it, an address, a network. Either case of the
names will do. Loopback never goes through one.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from pierhead.protocol.client.address import host_of
from pierhead.protocol.errors import Invalid
from pierhead.protocol.loopback import ip_of, is_loopback
from pierhead.protocol.problem import problem


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for a request, or none.

    Raises:
        Invalid: the proxy is not an HTTP proxy; a helper process could not use it.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or _is_excluded(host, parts.port, _read(environment, "no_proxy")):
        return None
    said = _read(environment, f"{parts.scheme}_proxy") or _read(environment, "all_proxy")
    if not said:
        return None
    said = said if "://" in said else f"http://{said}"
    host = host_of(said)
    if not host or urlsplit(said).scheme != "http":
        shown = f"{urlsplit(said).scheme}://{host}" if host else "its host cannot be read"
        hint = "set HTTPS_PROXY to http://HOST:PORT, or NO_PROXY to the control plane's host"
        raise Invalid(problem("invalid-document", f"not an HTTP proxy: {shown}", hint=hint))
    return said


def _read(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name) or environment.get(name.upper()) or ""


def _is_excluded(host: str, port: int | None, said: str) -> bool:
    entries = (entry.strip().lower() for entry in said.split(","))
    return any(entry and _matches(host.lower(), port, entry) for entry in entries)


def _matches(host: str, port: int | None, entry: str) -> bool:
    if entry == "*":
        return True
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and (":" not in name or name.endswith("]")):
        return str(port) == number and _matches(host, port, name)
    address = ip_of(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            return False
    return host == entry.lstrip(".") or host.endswith("." + entry.lstrip("."))
