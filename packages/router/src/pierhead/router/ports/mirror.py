"""What is kept of other registries, and the logins to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pierhead.router.domain.upstream import Image, Login


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A manifest of another registry, as it came. `checked_at`: when it last said so itself."""

    digest: str
    media_type: str
    body: bytes
    checked_at: datetime


class Mirror(Protocol):
    """The part of a transaction that base images see.

    `scope`: the id of the login under which something was seen, or empty for nobody's.
    """

    def logins(self) -> Sequence[Login]:
        """Return all registries that were added, by host, then project."""
        ...

    def locked_login(self, login_id: str) -> Mapping[str, bytes]:
        """Return the secret of a login as the vault locked it; empty: it has none, or is gone."""
        ...

    def save_login(self, login: Login, locked: Mapping[str, bytes]) -> None:
        """Add a login, in the place of the one for the same host and project."""
        ...

    def drop_login(self, host: str, project: str) -> Login | None:
        """Forget a login with its secret, and return it."""
        ...

    def mirrored(self, scope: str, image: Image) -> Mirrored | None:
        """Return what is kept of a manifest, by tag or digest."""
        ...

    def keep_mirrored(self, scope: str, image: Image, found: Mirrored) -> None:
        """Keep a manifest under a tag or digest."""
        ...

    def mirrored_size(self, scope: str, image: Image) -> int | None:
        """Return the most that a manifest says a blob has, in bytes; none: none names it."""
        ...

    def keep_mirrored_size(self, scope: str, image: Image, size_bytes: int, now: datetime) -> None:
        """Note what a manifest says of a blob; the most that was said counts."""
        ...

    def mirrored_blob(self, scope: str, host: str, name: str, digest: str) -> datetime | None:
        """Return when a blob was last used under a login; none: it was not seen under it."""
        ...

    def was_mirrored(self, host: str, name: str, digest: str) -> bool:
        """Say whether a blob was had from a place, under any login."""
        ...

    def keep_mirrored_blob(
        self, scope: str, host: str, name: str, digest: str, now: datetime
    ) -> None:
        """Note that a blob may be had under a login, and is used now."""
        ...

    def forget_mirrored(self, before: datetime, limit: int) -> int:
        """Forget manifests, sizes and blobs that were not used since; at most so many of each."""
        ...
