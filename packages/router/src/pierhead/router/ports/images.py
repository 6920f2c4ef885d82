"""What the registry keeps beside its blobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest as it was pushed, byte for byte."""

    repository: str
    digest: str
    media_type: str
    body: bytes
    parts: tuple[str, ...] = ()  # digests of what it cannot do without; not read back
    subject: str | None = None  # digest of the manifest that it is about


class Link(NamedTuple):
    """A blob that everybody sees in a repository. The empty one is before all others."""

    repository: str = ""
    digest: str = ""


class Images(Protocol):
    """One transaction over what the registry keeps.

    `pending` is the attempt that pushed something, or empty for what all of the repository see;
    `attempt` is who is asking, or empty: it sees both.
    """

    def manifest(self, repository: str, wanted: str, attempt: str) -> Manifest | None:
        """Return a manifest by digest or tag."""
        ...

    def add_manifest(self, manifest: Manifest, pending: str) -> None:
        """Store a manifest; `pending`: only for this attempt."""
        ...

    def delete_manifest(self, repository: str, wanted: str) -> bool:
        """Delete a tag, or a manifest with the tags on it; false: there was none."""
        ...

    def referrers(
        self, repository: str, subject: str, attempt: str, after: str, limit: int
    ) -> Sequence[Manifest]:
        """Return the manifests about another one, by digest, those after a digest."""
        ...

    def has_blob(self, repository: str, digest: str, attempt: str) -> bool:
        """Say whether a blob is linked where the attempt sees it."""
        ...

    def is_linked(self, repository: str, digest: str, pending: str) -> bool:
        """Say whether there is this very link."""
        ...

    def link_blob(self, repository: str, digest: str, pending: str, now: datetime) -> None:
        """Make a blob visible, or note that somebody was told that it is."""
        ...

    def told_at(self, repository: str, digest: str, attempt: str) -> datetime | None:
        """Return when somebody was last told that a blob is here; none: it is not."""
        ...

    def unlink_blob(self, repository: str, digest: str) -> bool:
        """Take a blob out of a repository; false: it was not in it."""
        ...

    def manifest_of(self, repository: str, part: str) -> str | None:
        """Return the digest of a manifest that cannot do without a part, if there is one."""
        ...

    def set_tag(self, repository: str, tag: str, digest: str) -> None:
        """Move a tag."""
        ...

    def tags(self, repository: str, after: str, limit: int) -> Sequence[str]:
        """Return the tags of a repository after one, sorted by their bytes."""
        ...

    def repositories(self, after: str, limit: int) -> Sequence[str]:
        """Return the repositories in which everybody sees something, after one, sorted."""
        ...

    def has_repository(self, repository: str) -> bool:
        """Say whether everybody who may sees something in a repository."""
        ...

    def publish(self, repository: str, pending: str) -> None:
        """Make all that an attempt pushed visible to its project."""
        ...

    def forget(self, repository: str, pending: str) -> None:
        """Drop what an attempt pushed and nobody accepted."""
        ...

    def idle_links(self, before: datetime, after: Link, limit: int) -> Sequence[Link]:
        """Return links, beyond one, that no manifest needs and nobody was told of since."""
        ...

    def forget_links(self, before: datetime, links: Sequence[Link]) -> int:
        """Drop those of the links of which that is still so, and return how many went."""
        ...

    def unlinked(self, digests: Sequence[str]) -> Sequence[str]:
        """Return those that no repository links, and nothing that was mirrored."""
        ...
