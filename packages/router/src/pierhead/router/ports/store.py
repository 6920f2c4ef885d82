"""What the router's database keeps.

A `Ledger` is what one transaction can see and change; a `Store` runs functions over it. Whatever a
function changes is on the disk when `write` returns, or nothing of it is.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from pierhead.protocol.plan import ContextRef
from pierhead.router.ports.builds import Builds
from pierhead.router.ports.images import Images
from pierhead.router.ports.machines import Machines
from pierhead.router.ports.mirror import Mirror
from pierhead.router.ports.projects import Projects

T = TypeVar("T")


class Ledger(Builds, Machines, Images, Mirror, Projects, Protocol):
    """One transaction over everything that the router keeps in its database."""

    def context(self, project: str, digest: str) -> ContextRef | None:
        """Return a context of a project; none: the project has no such context."""
        ...

    def save_context(self, project: str, context: ContextRef, now: datetime) -> None:
        """Add a context, or say that it is used now."""
        ...

    def forget_contexts(self, before: datetime) -> Sequence[tuple[str, str]]:
        """Forget contexts that were not used since and that no open build needs; return them."""
        ...

    def alive_at(self) -> datetime | None:
        """Return when the control plane last accepted heartbeats."""
        ...

    def mark_alive(self, now: datetime) -> None:
        """Say that heartbeats are accepted now."""
        ...


class Store(Protocol):
    """Runs functions over the ledger."""

    async def write(self, operation: Callable[[Ledger], T]) -> T:
        """Run it in a transaction that is on the disk when this returns."""
        ...

    async def read(self, operation: Callable[[Ledger], T]) -> T:
        """Run it on the last committed state."""
        ...
