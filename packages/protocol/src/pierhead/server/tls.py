"""The certificates of a control plane, as files and as what answers a handshake.

They are made anew while it runs: the next handshake shows the new one, connections that are open
go on with the old one.

Files, in a folder that only its owner can enter: `authority.pem` (key and certificate; while it is
changed for another one, also that one and a note), `server.pem` (key, certificate, authority). Each
is replaced as a whole, so no key is ever beside the certificate of another. What a stop left undone
between the two is done at the next start: the second follows from the first.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pierhead.server.authority import Pair, fingerprint, fits, is_due, issue, key_pin, new_authority
from pierhead.server.handshake import OWN_FILE, server_context

AUTHORITY_FILE: Final = "authority.pem"

_KEY_ENDS: Final = b"-----END PRIVATE KEY-----\n"
_CERTIFICATE_ENDS: Final = b"-----END CERTIFICATE-----\n"
_BLOCK: Final = re.compile(
    rb"-----BEGIN (PRIVATE KEY|CERTIFICATE)-----\n[^-]+-----END \1-----\n", re.DOTALL
)
_NOTE: Final = b"# "


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """The authority that signs, and the one beside it while one is changed for the other."""

    signs: Pair
    beside: Pair | None = None  # its key is empty once it is not needed any more
    # Of the one that signs, by the one beside it, PEM: shown to whoever knows the latter only.
    vouched: bytes = b""
    note: str = ""  # of whoever decides about the change; one line, kept as it is

    @property
    def chain(self) -> bytes:
        """What is shown after a certificate that was signed."""
        return self.vouched or self.signs.certificate

    @property
    def content(self) -> bytes:
        """All of it, as a file: other programs find in it the one that signs."""
        if self.beside is None:
            return self.signs.pem
        note = _NOTE + self.note.encode() + b"\n"
        return self.signs.pem + note + self.beside.pem + self.vouched


def read_signing(path: Path) -> Signing | None:
    """Return what a file holds; none: it is not there, or not whole.

    Its parts are found by what they are, not by their place: a key is followed by its certificate.
    """
    signs = read_pair(path)
    if signs is None:
        return None
    rest = path.read_bytes().removeprefix(signs.pem)
    note, _, _ = rest.removeprefix(_NOTE).partition(b"\n")
    blocks = [(found[1], found[0]) for found in _BLOCK.finditer(rest)]
    certificates = [block for kind, block in blocks if kind == b"CERTIFICATE"]
    if len(certificates) < 2:
        return Signing(signs=signs)
    key = b"".join(block for kind, block in blocks if kind == b"PRIVATE KEY")
    beside = Pair(key, certificates[0])
    return Signing(signs=signs, beside=beside, vouched=certificates[1], note=note.decode())


class Certificates:
    """The authority of one control plane, its server's certificate, and the TLS context of both."""

    def __init__(self, folder: Path, names: Sequence[str], *, now: datetime) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        self._signing = read_signing(folder / AUTHORITY_FILE) or self._new_authority(names[0], now)
        self.context = server_context()
        if not self.renew(names, now=now):
            self.context.load_cert_chain(folder / OWN_FILE)

    @property
    def signing(self) -> Signing:
        """The authority, and what is beside it."""
        return self._signing

    @property
    def authority(self) -> bytes:
        """What is to be believed, PEM: the certificate of the authority, and of one beside it."""
        beside = self._signing.beside
        return self._signing.signs.certificate + (beside.certificate if beside else b"")

    @property
    def pin(self) -> str:
        """The fingerprint of the authority that signs."""
        return fingerprint(self._signing.signs.certificate)

    @property
    def shown(self) -> bytes:
        """The server's certificate, PEM."""
        server = self._load(OWN_FILE)
        assert server is not None, "the constructor made it"
        return server.certificate

    @property
    def key_pin(self) -> str:
        """The pin of the server's own key, for programs that know no authority."""
        return key_pin(self.shown)

    def change(self, signing: Signing, names: Sequence[str], *, now: datetime) -> None:
        """Let other authorities count from now on; the next handshake shows it."""
        write_secret(self._folder / AUTHORITY_FILE, signing.content)
        self._signing = signing
        self.renew(names, now=now)

    def begin_anew(self, signing: Signing, names: Sequence[str], *, now: datetime) -> None:
        """Let another authority count from now on, and a server's key that nobody has seen."""
        # First the key: a stop in between must not leave it to the new authority.
        (self._folder / OWN_FILE).unlink(missing_ok=True)
        try:
            self.change(signing, names, now=now)
        except OSError:
            self.renew(names, now=now)  # for the authority that goes on to count
            raise

    def renew(self, names: Sequence[str], *, now: datetime) -> bool:
        """Make the server's certificate anew if it ends soon or lacks a name.

        Its key stays: lines that were handed out with a pin of it have to work as long as they say.
        """
        found = self._load(OWN_FILE)
        if (
            found is not None
            and self._is_whole()
            and fits(found.certificate, self._signing.signs.certificate)
            and not is_due(found.certificate, names, now=now)
        ):
            return False
        new = issue(self._signing.signs, names, now=now, key=found.key if found else None)
        write_secret(self._folder / OWN_FILE, new.pem + self._signing.chain)
        self.context.load_cert_chain(self._folder / OWN_FILE)
        return True

    def _is_whole(self) -> bool:
        content = (self._folder / OWN_FILE).read_bytes()
        return content.endswith(_CERTIFICATE_ENDS + self._signing.chain)

    def _new_authority(self, name: str, now: datetime) -> Signing:
        made = Signing(signs=new_authority(f"pierhead {name}", now=now))
        write_secret(self._folder / AUTHORITY_FILE, made.content)
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
    """Write a file that only its owner can read; whole or not at all, and for good."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    # A machine that loses its power must not come back with a key that is somebody else's.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
