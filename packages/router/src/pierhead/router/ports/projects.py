"""Projects, environments and tokens, as they are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pierhead.router.domain.credential import Credential


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProject:
    """A project."""

    name: str
    trusted: bool
    created_at: datetime
    removing: bool = False  # it takes nothing any more, and its builds and images go
    builds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEnvironment:
    """An environment of a project."""

    project: str
    name: str
    preview: bool
    created_at: datetime
    builds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """How much there is in a project."""

    builds: int
    open_builds: int
    images: int
    tags: int
    environments: int
    tokens: int


class Projects(Protocol):
    """The part of a transaction that projects and tokens see."""

    def last_peak(self, project: str) -> int | None:
        """Return the memory that the project's last build took that says so; none: none does."""
        ...

    def project(self, name: str) -> StoredProject | None:
        """Return one project."""
        ...

    def projects_page(self, limit: int, after: str, only: str | None) -> Sequence[StoredProject]:
        """Return projects by name, beyond `after`, with how many builds they had."""
        ...

    def take_turn(self, project: str) -> None:
        """Say that the project has a grant now, later than any other project's."""
        ...

    def give_turn_back(self, project: str) -> None:
        """Say that the project's last grant came to nothing, as if it never had one."""
        ...

    def removing(self) -> Sequence[str]:
        """Return the projects whose removal was begun."""
        ...

    def save_project(self, project: StoredProject) -> None:
        """Add a project, or store one that was changed."""
        ...

    def contents(self, project: str) -> Contents:
        """Count what a project has."""
        ...

    def purge_project(self, project: str, limit: int) -> tuple[bool, Sequence[str]]:
        """Delete some of what a project had; say whether more is left, and which builds went."""
        ...

    def environment(self, project: str, name: str) -> StoredEnvironment | None:
        """Return one environment."""
        ...

    def environments_page(
        self, project: str, limit: int, after: str
    ) -> Sequence[StoredEnvironment]:
        """Return environments by name, beyond `after`, with how many builds they had."""
        ...

    def save_environment(self, environment: StoredEnvironment) -> None:
        """Add an environment, or store one that was changed."""
        ...

    def drop_environment(self, project: str, name: str) -> None:
        """Forget an environment; its builds stay."""
        ...

    def open_builds(self, project: str, environment: str) -> int:
        """Return how many builds of an environment wait or run."""
        ...

    def credential(self, token_id: str) -> Credential | None:
        """Return one token."""
        ...

    def credential_by_hash(self, token_hash: str) -> Credential | None:
        """Return the token whose hash begins as this one does; the caller compares the whole."""
        ...

    def credential_by_key(self, project: str | None, key: str) -> Credential | None:
        """Return the token that was made under a key."""
        ...

    def credentials_page(
        self, project: str | None, limit: int, before: int | None
    ) -> Sequence[tuple[int, Credential]]:
        """Return tokens of a project (none: the owner's), newest first, each with its number."""
        ...

    def save_credential(self, credential: Credential) -> None:
        """Add a token, or store one that was changed."""
        ...

    def revoke_credentials(self, project: str, environment: str | None, now: datetime) -> int:
        """Revoke all tokens of a project, or of one environment; return how many lived."""
        ...

    def forget_credentials(self, project: str | None, dead_before: datetime) -> None:
        """Forget tokens that were revoked or ended before."""
        ...

    def note_uses(self, uses: Mapping[str, datetime]) -> None:
        """Store when tokens were last used; a later use that is stored stays."""
        ...
