"""Runners and the codes by which they join, as they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pierhead.protocol.runner import Capabilities
from pierhead.router.domain.enrollment import Code
from pierhead.router.domain.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRunner:
    """A runner with its current session."""

    name: str
    credential_hash: str
    here: bool = False
    created_at: datetime
    session: Session | None = None
    state_id: str | None = None  # of its state folder: a copy of it has another
    capabilities: Capabilities | None = None
    slots: int = 0  # asked for with the last acquire
    reason: str | None = None  # why it takes nothing, in its own words
    refuses_since: datetime | None = None
    authorities: tuple[str, ...] | None = None  # pins of whom it believes; none: it never said so

    @property
    def is_expelled(self) -> bool:
        """Whether its credential was taken away; a join code may let the same name in again."""
        return not self.credential_hash


class Machines(Protocol):
    """The part of a transaction that runners see."""

    def runners(self) -> Sequence[StoredRunner]:
        """Return all runners, by name."""
        ...

    def runner(self, name: str) -> StoredRunner | None:
        """Return one runner."""
        ...

    def save_runner(self, runner: StoredRunner) -> None:
        """Add a runner, or store one that was changed."""
        ...

    def delete_runner(self, name: str) -> None:
        """Forget a runner, and the join codes that would bring it back."""
        ...

    def runner_by_credential(self, credential_hash: str) -> StoredRunner | None:
        """Return the runner whose hash begins as this one does; the caller compares the whole."""
        ...

    def code(self, secret_hash: str) -> Code | None:
        """Return a join code."""
        ...

    def save_code(self, secret_hash: str, code: Code) -> None:
        """Add a join code, or store one that was used."""
        ...

    def revoke_codes(self, now: datetime) -> int:
        """Forget all join codes; return how many could still have been used."""
        ...
