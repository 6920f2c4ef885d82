"""Registries of others."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from pierhead.protocol.registry import LoginKind
from pierhead.router.domain.upstream import Bound, Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A registry to ask, and as whom.

    `allowed`: hosts that may be asked though they are in a private network; `plain`, those that may
    be asked without TLS.
    """

    host: str
    scope: str = ""
    username: str | None = None
    secret: str | None = field(default=None, repr=False)
    plain_http: bool = False
    ca: str | None = None
    allowed: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamBlob:
    """The bytes of a blob as they come; `size_bytes` none: it was not said."""

    size_bytes: int | None
    chunks: AsyncIterator[bytes]


class Upstreams(Protocol):
    """Registries of others. What they send was not checked but for its size.

    Every call raises the `Upstream` errors of `domain.errors`, and `HostNotAllowed`.
    """

    async def try_login(self, upstream: Upstream) -> LoginKind:
        """Log in, and return how; `open`: nobody was asked for a login."""
        ...

    async def digest(self, upstream: Upstream, image: Image) -> str | None:
        """Return what a manifest's digest is said to be; none: that is not said."""
        ...

    async def manifest(self, upstream: Upstream, image: Image) -> tuple[str, bytes, str | None]:
        """Return the media type, the bytes, and the digest that they are said to have."""
        ...

    async def blob_size(self, upstream: Upstream, name: str, digest: str) -> int | None:
        """Return the size of a blob that may be had; none: it is there, and that is not said."""
        ...

    def blob(
        self, upstream: Upstream, name: str, digest: str, bound: Bound
    ) -> AbstractAsyncContextManager[UpstreamBlob]:
        """Give a blob, of which no more comes than the bound.

        Raises:
            UpstreamLies: it is larger; at once if the registry says so, else when more comes.
        """
        ...
