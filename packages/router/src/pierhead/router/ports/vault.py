"""Where secrets become unreadable, and whom they are sealed for."""

from collections.abc import Mapping
from typing import Protocol

from pierhead.protocol.lease import Sealed


class Vault(Protocol):
    """Keeps secrets unreadable while they wait, and seals them for whoever may have them."""

    def lock(self, build_id: str, values: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return each value encrypted, bound to its build and its name."""
        ...

    def unlock(self, build_id: str, locked: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the values again.

        Raises:
            SecretsLost: they were locked with another key, for another build, or were changed.
        """
        ...

    def mac(self, build_id: str, values: Mapping[str, bytes]) -> str:
        """Return what tells two sets of values apart, and gives nothing away without the key."""
        ...

    def seal(
        self, values: Mapping[str, bytes], *, recipient: bytes, build_id: str, fence: int
    ) -> Sealed:
        """Return the values for one attempt, readable by one session only."""
        ...

    def usable(self, public_key: bytes) -> bool:
        """Say whether anything can be sealed to a key."""
        ...
