"""The certificates of a control plane, as files and as what answers a handshake.

They are made anew while it runs: the next handshake shows the new one, connections that are open
go on with the old one.

Files, in a folder that only its owner can enter: `authority.pem` (key and certificate),
`server.pem` (key, certificate, authority). Each is replaced as a whole, so no key is ever beside
the certificate of another.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from pierhead.server.authority import Pair, fingerprint, fits, is_due, issue, key_pin, new_authority
from pierhead.server.handshake import OWN_FILE, server_context

_KEY_ENDS: Final = b"-----END PRIVATE KEY-----\n"
_CERTIFICATE_ENDS: Final = b"-----END CERTIFICATE-----\n"


class Certificates:
    """The authority of one control plane, its server's certificate, and the TLS context of both."""

    def __init__(self, folder: Path, names: Sequence[str], *, now: datetime) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        self._authority = self._load("authority.pem") or self._new_authority(names[0], now)
        self.context = server_context()
        if not self.renew(names, now=now):
            self.context.load_cert_chain(folder / OWN_FILE)

    @property
    def authority(self) -> bytes:
        """The certificate of the authority, PEM."""
        return self._authority.certificate

    @property
    def pin(self) -> str:
        """The fingerprint of the authority."""
        return fingerprint(self._authority.certificate)

    @property
    def key_pin(self) -> str:
        """The pin of the server's own key, for programs that know no authority."""
        server = self._load(OWN_FILE)
        assert server is not None, "the constructor made it"
        return key_pin(server.certificate)

    def renew(self, names: Sequence[str], *, now: datetime) -> bool:
        """Make the server's certificate anew if it ends soon or lacks a name.

        Its key stays: lines that were handed out with a pin of it have to work as long as they say.
        """
        found = self._load(OWN_FILE)
        if (
            found is not None
            and self._is_whole()
            and fits(found.certificate, self._authority.certificate)
            and not is_due(found.certificate, names, now=now)
        ):
            return False
        new = issue(self._authority, names, now=now, key=found.key if found else None)
        write_secret(self._folder / OWN_FILE, new.pem + self._authority.certificate)
        self.context.load_cert_chain(self._folder / OWN_FILE)
        return True

    def _is_whole(self) -> bool:
        content = (self._folder / OWN_FILE).read_bytes()
        return content.endswith(_CERTIFICATE_ENDS + self._authority.certificate)

    def _new_authority(self, name: str, now: datetime) -> Pair:
        made = new_authority(f"pierhead {name}", now=now)
        write_secret(self._folder / "authority.pem", made.pem)
        return made

    def _load(self, name: str) -> Pair | None:
        return read_pair(self._folder / name)


def read_pair(path: Path) -> Pair | None:
    """Return the key and the first certificate of a file; none: it is not there, or not whole."""
    try:
        key, ends, rest = path.read_bytes().partition(_KEY_ENDS)
    except FileNotFoundError:
        return None
    certificate, whole, _ = rest.partition(_CERTIFICATE_ENDS)
    return Pair(key + ends, certificate + whole) if ends and whole else None


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
