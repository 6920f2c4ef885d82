"""Secrets at rest, under keys that are derived from the installation's own.

Each build has a key of its own, so a nonce can only meet itself among the few secrets of one build.
The build and the name are authenticated with a value: a row that was moved to another build, or
given another name, does not open.
"""

import hmac
import os
from collections.abc import Mapping
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pierhead.protocol import sealing
from pierhead.protocol.lease import Sealed
from pierhead.router.domain.errors import SecretsLost

_NONCE_BYTES: Final = 12


class KeyVault:
    """The vault under one installation's key."""

    def __init__(self, installation_key: bytes) -> None:
        self._key = installation_key

    def lock(self, build_id: str, values: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return each value encrypted, bound to its build and its name."""
        if not values:
            return {}
        cipher = ChaCha20Poly1305(self._derived("at rest", build_id))
        locked = {}
        for name, value in values.items():
            nonce = os.urandom(_NONCE_BYTES)
            locked[name] = nonce + cipher.encrypt(nonce, value, _about(build_id, name))
        return locked

    def unlock(self, build_id: str, locked: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the values again.

        Raises:
            SecretsLost: they were locked with another key, for another build, or were changed.
        """
        cipher = ChaCha20Poly1305(self._derived("at rest", build_id))
        values = {}
        for name, box in locked.items():
            nonce, sealed = box[:_NONCE_BYTES], box[_NONCE_BYTES:]
            try:
                values[name] = cipher.decrypt(nonce, sealed, _about(build_id, name))
            except (InvalidTag, ValueError) as error:
                detail = f"the secret {name} of {build_id} cannot be read any more"
                raise SecretsLost(detail, hint="submit the build again") from error
        return values

    def mac(self, build_id: str, values: Mapping[str, bytes]) -> str:
        """Return what tells two sets of values apart, and gives nothing away without the key."""
        document = msgspec.json.encode(values, order="sorted")
        return hmac.digest(self._derived("same values", build_id), document, "sha256").hex()

    def seal(
        self, values: Mapping[str, bytes], *, recipient: bytes, build_id: str, fence: int
    ) -> Sealed:
        """Return the values for one attempt, readable by one session only."""
        return sealing.seal(values, recipient=recipient, build_id=build_id, fence=fence)

    def usable(self, public_key: bytes) -> bool:
        """Say whether anything can be sealed to a key."""
        return sealing.usable(public_key)

    def _derived(self, purpose: str, build_id: str) -> bytes:
        info = f"pierhead: secrets {purpose}, version 1\n{build_id}".encode()
        return HKDF(SHA256(), length=32, salt=None, info=info).derive(self._key)


def _about(build_id: str, name: str) -> bytes:
    return f"{build_id}\n{name}".encode()
