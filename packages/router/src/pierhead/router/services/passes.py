"""Passes: tokens for the registry alone, which hold the credential that they were given for.

Nothing is stored for one. The credential is in it, encrypted and bound to what the pass is good
for, and counts at each use: a pass ends with the credential that it was given for.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pierhead.router.domain.errors import SecretsLost, Unauthenticated
from pierhead.router.domain.passes import PASS_PREFIX, Scopes, claims, read, scopes_of
from pierhead.router.ports.system import Clock
from pierhead.router.ports.vault import Vault

# In the place of a build, which no build has for its id.
_PURPOSE: Final = "registry pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Gives them out, and reads them."""

    vault: Vault
    clock: Clock

    def give(self, credential: str, asked: Iterable[str]) -> str:
        """Return a pass for the scopes that are asked for; the credential was found good."""
        said = claims(scopes_of(asked), self.clock.now())
        box = self.vault.lock(_PURPOSE, {said: credential.encode()})[said]
        return f"{PASS_PREFIX}{_text(said.encode())}.{_text(box)}"

    def open(self, token: str) -> tuple[str, Scopes]:
        """Return the credential in a pass, and what the pass is good for.

        Raises:
            Unauthenticated: this installation did not make it.
            TokenExpired: its time is over.
        """
        said, _, box = token.removeprefix(PASS_PREFIX).partition(".")
        try:
            text = _bytes(said).decode("ascii")
            credential = self.vault.unlock(_PURPOSE, {text: _bytes(box)})[text].decode()
        except (SecretsLost, ValueError) as error:
            raise Unauthenticated("this token is not known here") from error
        return credential, read(text, self.clock.now())


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
