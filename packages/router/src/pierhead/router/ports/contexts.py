"""What is in contexts, and where they come in."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol

from pierhead.protocol.tree import Entry
from pierhead.server.stretch import Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPage:
    """A page of a tree that came, and what is in it."""

    digest: bytes
    page: bytes
    entries: Sequence[Entry]


class SealedPage(NamedTuple):
    """A page whose part of the archive is made."""

    digest: bytes
    page: bytes
    files: int
    size_bytes: int  # of all its files
    tar_bytes: int


@dataclass(frozen=True, slots=True)
class Archive:
    """The tar.zst of a context: parts, one after the other. `tag` names these very bytes."""

    parts: Sequence[Stretch | bytes]
    tag: str


class ContextStore(Protocol):
    """What is in contexts. What one project has is not there for another."""

    async def keep(self, project: str, body: AsyncIterator[bytes]) -> int:
        """Keep the objects of a body and return how many came; after a cut, those before it."""
        ...

    async def lacking(self, project: str, digests: Sequence[bytes]) -> list[bytes]:
        """Return which objects the project does not have, in order and once each."""
        ...

    async def read(self, project: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return small objects; those that are gone are left out."""
        ...

    async def sealed(self, project: str, digests: Sequence[bytes]) -> dict[bytes, SealedPage]:
        """Return the pages whose part of the archive is made."""
        ...

    async def seal(self, project: str, pages: Sequence[NewPage]) -> None:
        """Make the parts of the archive for pages all of whose objects are there."""
        ...

    async def save(self, project: str, digest: str, pages: bytes) -> None:
        """Remember which pages a context has, all of them sealed."""
        ...

    async def archive(self, project: str, digest: str) -> Archive | None:
        """Return the archive of a context; none: it is not there."""
        ...

    async def forget(self, project: str, digest: str) -> None:
        """Forget a context."""
        ...

    async def forget_project(self, project: str) -> None:
        """Remove all that a project has."""
        ...

    async def sweep(self) -> None:
        """Remove what nothing needs."""
        ...


class Incoming(Protocol):
    """Where a tar is while it is looked at."""

    def tar(self, body: AsyncIterator[bytes]) -> AbstractAsyncContextManager[BinaryIO]:
        """Give a body, plain or as gzip or zstd, as a plain tar that can be read twice.

        Raises:
            Invalid: it is too large, or damaged.
        """
        ...
