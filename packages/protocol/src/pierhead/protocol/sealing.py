"""Secrets on their way to a runner: sealed by the router, opened by one session of one runner.

A box is made with a key pair of its own (X25519) and the session's public key; what the two agree
on goes through HKDF and encrypts with ChaCha20-Poly1305. The build and the fence are authenticated
with it, so a box opens for the attempt that it was made for and for no other.

What is not here: how the router keeps secrets until then. Only a router's server and a runner may
import this module: `cryptography` is not among what a submitter installs.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pierhead.protocol.errors import IntegrityError
from pierhead.protocol.lease import Sealed
from pierhead.protocol.problem import problem

_PURPOSE: Final = b"pierhead: secrets of a build, sealed, version 1"
# Each box has a key of its own, which encrypts once: so its nonce can always be the same.
_NONCE: Final = bytes(12)


def seal(values: Mapping[str, bytes], *, recipient: bytes, build_id: str, fence: int) -> Sealed:
    """Return a box that only the holder of the recipient's private key can open.

    Raises:
        ValueError: the recipient's key is not a point that a key can be agreed on with.
    """
    ours = X25519PrivateKey.generate()
    shared = ours.exchange(X25519PublicKey.from_public_bytes(recipient))
    public = ours.public_key().public_bytes_raw()
    cipher = ChaCha20Poly1305(_key(shared, public, recipient))
    plain = msgspec.json.encode(values)
    return Sealed(public_key=public, box=cipher.encrypt(_NONCE, plain, _about(build_id, fence)))


class SessionKey:
    """The key pair of one process of a runner. It is in this process's memory only."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public: Final = self._private.public_key().public_bytes_raw()

    def open(self, sealed: Sealed, *, build_id: str, fence: int) -> dict[str, bytes]:
        """Return the values in a box.

        Raises:
            IntegrityError: it was made for another session or attempt, or was changed.
        """
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(sealed.public_key))
            cipher = ChaCha20Poly1305(_key(shared, sealed.public_key, self.public))
            plain = cipher.decrypt(_NONCE, sealed.box, _about(build_id, fence))
            return msgspec.json.decode(plain, type=dict[str, bytes])
        except (InvalidTag, ValueError, msgspec.MsgspecError) as error:
            detail = "the secrets that came are not for this attempt, or were changed"
            raise IntegrityError(problem("digest-mismatch", detail)) from error


def usable(public_key: bytes) -> bool:
    """Say whether a key can be sealed to; some points agree on the same key with everybody."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError:
        return False
    return True


def _key(shared: bytes, sender: bytes, recipient: bytes) -> bytes:
    return HKDF(SHA256(), length=32, salt=sender + recipient, info=_PURPOSE).derive(shared)


def _about(build_id: str, fence: int) -> bytes:
    return f"{build_id}\n{fence}".encode()
