"""The certificate authority where it is kept, with its keys, and what handshakes show of it."""

from typing import Protocol

from pierhead.router.domain.authority import Authority, Root, Steady


class Roots(Protocol):
    """Keeps one authority. Whatever it is told is stored as a whole, and shown from then on."""

    @property
    def state(self) -> Authority:
        """How far its change for another one is."""
        ...

    def make(self) -> Root:
        """Make a root. It counts for nothing, and is forgotten, unless it is entered."""
        ...

    def enter(self, state: Authority) -> None:
        """Go on to a state that follows from the one that there is.

        Keys that it has no use for are gone with that.

        Raises:
            OSError: it could not be stored, and everything is as it was.
        """
        ...

    def begin_anew(self, state: Steady) -> None:
        """Let a root count that was made, and nothing else that was before.

        Raises:
            OSError: it could not be stored.
        """
        ...
