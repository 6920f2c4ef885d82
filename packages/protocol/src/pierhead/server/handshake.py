"""What answers a handshake, made from files. The standard library only: the gate is small.

The files may be replaced at any time; the next handshake shows what they hold then.
"""

import ssl
from pathlib import Path
from typing import Final

OWN_FILE: Final = "server.pem"
DOMAIN_FILE: Final = "domain.pem"


def server_context(path: Path | None = None, protocol: str = "http/1.1") -> ssl.SSLContext:
    """Return a context for a server; `path` holds its key and chain."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    if path is not None:
        context.load_cert_chain(path)
    return context


class _File:
    """One key with its chain."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._context = server_context()

    def context(self) -> ssl.SSLContext | None:
        """Return what shows it; none: it was never there."""
        try:
            found = self._path.stat()
            seen = found.st_mtime_ns, found.st_ino
            if seen != self._seen:
                self._context.load_cert_chain(self._path)
                self._seen = seen
        except OSError:  # also of what is no certificate: then the last one is shown
            pass
        return self._context if self._seen else None


class Folder:
    """The certificates in the folder of a control plane, as they are now."""

    def __init__(self, folder: Path, domain: str | None) -> None:
        self._own = _File(folder / OWN_FILE)
        self._named = _File(folder / DOMAIN_FILE)
        self._domain = domain

    def context(self) -> ssl.SSLContext | None:
        """Return what answers the next handshake; none: there is no certificate."""
        own = self._own.context()
        if own is not None and self._domain is not None:
            own.sni_callback = self._choose
        return own

    def _choose(self, handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        named = self._named.context() if name == self._domain else None
        if named is not None:
            handshake.context = named
