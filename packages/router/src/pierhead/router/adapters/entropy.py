"""Ids and secrets from the operating system."""

import secrets
from typing import Final

# No vowels and no look-alikes: ids are read aloud, and should not spell anything.
_ALPHABET: Final = "23456789bcdfghjkmnpqrstvwxz"
_ID_LENGTH: Final = 8


class SystemEntropy:
    """Draws from the system's random source."""

    def id(self, prefix: str) -> str:
        """Return `prefix` and 8 characters: 2.8e11 ids, and the database refuses a repeat."""
        return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))

    def secret(self) -> str:
        """Return 43 characters of url-safe text: 256 bits."""
        return secrets.token_urlsafe(32)
