"""The built-in registry: blobs and manifests, visible only where they are linked.

What an attempt pushes is pending: it alone sees it, until its result is accepted and all of it
becomes the project's in one transaction. A digest that exists on the disk for another project is
unknown here, so nothing can be learned or taken by guessing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pierhead.protocol.digest import digest_of
from pierhead.router.domain.errors import (
    DigestMismatch,
    InvalidRequest,
    NotAllowed,
    NotFound,
    OffsetMismatch,
)
from pierhead.router.domain.manifest import Part, Reading, read_manifest, referrer
from pierhead.router.domain.naming import attempt_name, mark_of, upload_mark
from pierhead.router.domain.rights import (
    may_move_tag,
    may_pull,
    may_push_content,
    only_repository,
)
from pierhead.router.domain.token import Attempt, Principal
from pierhead.router.ports.images import Manifest
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.server.blobs import BlobStore

BLOB_BYTES_MAX: Final = 64 * 1024**3
# Whoever was told within the grace of the sweep that a blob is here may rely on it; noting it more
# often than this is not worth a write.
TOLD_EVERY: Final = timedelta(hours=1)
REFERRERS_BYTES: Final = 2 * 1024 * 1024  # of manifests for one answer, a fraction of them
_AT_ONCE: Final = 4  # a manifest may have 4 MiB


class BlobUnknown(InvalidRequest):
    """A manifest refers to what the pusher does not see in the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What clients may do, with their rights checked first."""

    store: Store
    blobs: BlobStore
    clock: Clock

    async def blob_size(self, principal: Principal, repository: str, digest: str) -> int:
        """Return the size of a visible blob.

        Raises:
            NotFound: there is none that the principal sees.
        """
        require_pull(principal, repository)
        pending, now = _pending(principal), self.clock.now()
        told_at = await self.store.read(lambda ledger: ledger.told_at(repository, digest, pending))
        if told_at is not None and now - told_at > TOLD_EVERY:
            # The sweep may have been quicker than this: then it is not here any more.
            noted = await self._note_told(principal, repository, digest, now)
            told_at = now if noted else None
        size = await self.blobs.size(digest) if told_at is not None else None
        if size is None:
            raise NotFound(f"{repository} has no blob {digest}")
        return size

    async def _note_told(
        self, principal: Principal, repository: str, digest: str, now: datetime
    ) -> bool:
        """Note that somebody who may push is told that a blob is here; say whether it is."""
        if not may_push_content(principal, repository):
            return True

        def operation(ledger: Ledger) -> bool:
            seen = [
                pending
                for pending in {"", _pending(principal)}
                if ledger.is_linked(repository, digest, pending)
            ]
            for pending in seen:
                ledger.link_blob(repository, digest, pending, now)
            return bool(seen)

        return await self.store.write(operation)

    async def delete_blob(self, principal: Principal, repository: str, digest: str) -> None:
        """Take a blob out of a repository, when no manifest needs it.

        Raises:
            NotAllowed: the token may not, or one does.
        """
        _require_delete(principal, repository)

        def operation(ledger: Ledger) -> bool:
            if ledger.manifest_of(repository, digest) is not None:
                hint = "delete the manifests first"
                raise NotAllowed(f"manifests of {repository} need the blob {digest}", hint=hint)
            return ledger.unlink_blob(repository, digest)

        if not await self.store.write(operation):
            raise NotFound(f"{repository} has no blob {digest}")

    async def begin(self, principal: Principal, repository: str) -> str:
        """Begin an upload; its id is marked, so that it is of no use in another repository."""
        require_push(principal, repository)
        return await self.blobs.begin(upload_mark(repository, _pending(principal)))

    async def mount(self, principal: Principal, repository: str, digest: str, source: str) -> bool:
        """Link a blob from another repository; false: it has to be uploaded."""
        require_push(principal, repository)
        if not may_pull(principal, source) or await self.blobs.size(digest) is None:
            return False
        pending, now = _pending(principal), self.clock.now()

        def operation(ledger: Ledger) -> bool:
            seen = ledger.has_blob(source, digest, pending)
            if seen:
                ledger.link_blob(repository, digest, pending, now)
            return seen

        return await self.store.write(operation)

    async def append(
        self,
        principal: Principal,
        repository: str,
        upload_id: str,
        chunks: AsyncIterator[bytes],
        offset: int | None = None,
    ) -> int:
        """Add bytes to an upload and return its size; `offset` none: at its end."""
        _require_own(principal, repository, upload_id)
        end = await self.blobs.offset(upload_id)
        if offset is not None and offset != end:
            detail = f"the upload has {end} bytes, the part begins at {offset}"
            raise OffsetMismatch(detail, next_offset=end)
        return await self.blobs.append(upload_id, end, chunks, BLOB_BYTES_MAX)

    async def upload_size(self, principal: Principal, repository: str, upload_id: str) -> int:
        """Return how far an upload is."""
        _require_own(principal, repository, upload_id)
        return await self.blobs.offset(upload_id)

    async def cancel_upload(self, principal: Principal, repository: str, upload_id: str) -> None:
        """Forget an upload."""
        _require_own(principal, repository, upload_id)
        await self.blobs.discard(upload_id)

    async def commit(
        self, principal: Principal, repository: str, upload_id: str, digest: str
    ) -> None:
        """Turn an upload into a blob that the pusher sees."""
        _require_own(principal, repository, upload_id)
        await self.blobs.commit(upload_id, digest)
        pending, now = _pending(principal), self.clock.now()
        await self.store.write(lambda ledger: ledger.link_blob(repository, digest, pending, now))

    async def manifest(self, principal: Principal, repository: str, wanted: str) -> Manifest:
        """Return a manifest by digest or tag."""
        require_pull(principal, repository)
        pending = _pending(principal)
        found = await self.store.read(lambda ledger: ledger.manifest(repository, wanted, pending))
        if found is None:
            raise NotFound(f"{repository} has no manifest {wanted[:140]}")
        return found

    async def push_manifest(
        self, principal: Principal, repository: str, wanted: str, media_type: str, body: bytes
    ) -> Manifest:
        """Store a manifest as it is, and return it.

        Raises:
            NotAllowed: an attempt's token was used for a tag.
            ManifestInvalid: it is not a manifest, or says what is not true of its parts.
            BlobUnknown: it refers to what is not there.
        """
        require_push(principal, repository)
        by_digest = wanted.startswith("sha256:")
        if not by_digest and not may_move_tag(principal, repository):
            raise NotAllowed("a build pushes by digest; its tags move when its result is accepted")
        digest = digest_of(body)
        if by_digest and wanted != digest:
            raise DigestMismatch(f"the manifest is {digest}, not {wanted}")
        # A large one takes longer than others are to wait: a second, when somebody wants it to.
        reading = await asyncio.to_thread(read_manifest, body, media_type)
        manifest = Manifest(
            repository=repository,
            digest=digest,
            media_type=reading.kind,
            body=body,
            parts=reading.needed,
            subject=reading.subject.digest if reading.subject else None,
        )

        def operation(ledger: Ledger) -> None:
            pending = _pending(principal)
            _require_parts(ledger, repository, reading, pending, self._size_here)
            ledger.add_manifest(manifest, pending)
            if not by_digest:
                ledger.set_tag(repository, wanted, digest)

        await self.store.write(operation)
        return manifest

    def _size_here(self, digest: str) -> int | None:
        """Return how long a blob is, while a transaction keeps it from being taken away."""
        try:
            return self.blobs.path(digest).stat().st_size
        except FileNotFoundError:
            return None

    async def delete_manifest(self, principal: Principal, repository: str, wanted: str) -> None:
        """Delete a tag, or a manifest with the tags on it.

        Raises:
            NotAllowed: the token may not, or an index needs the manifest.
        """
        _require_delete(principal, repository)

        def operation(ledger: Ledger) -> bool:
            if wanted.startswith("sha256:") and ledger.manifest_of(repository, wanted) is not None:
                hint = "delete the index first"
                raise NotAllowed(f"an index of {repository} needs {wanted}", hint=hint)
            return ledger.delete_manifest(repository, wanted)

        if not await self.store.write(operation):
            raise NotFound(f"{repository} has no manifest {wanted[:140]}")

    async def tags(
        self, principal: Principal, repository: str, after: str, limit: int
    ) -> Sequence[str]:
        """Return the tags of a repository after one, sorted."""
        require_pull(principal, repository)
        return await self.store.read(lambda ledger: ledger.tags(repository, after, limit))

    async def repositories(self, principal: Principal, after: str, limit: int) -> Sequence[str]:
        """Return the repositories with something in them that the principal may know of."""
        only = only_repository(principal)
        if only is None:
            return await self.store.read(lambda ledger: ledger.repositories(after, limit))
        there = await self.store.read(lambda ledger: ledger.has_repository(only))
        return [only][:limit] if there and only > after else []

    async def referrers(
        self, principal: Principal, repository: str, subject: str, kind: str | None, after: str
    ) -> tuple[Sequence[dict[str, Any]], str | None]:
        """Return descriptors of the manifests about another one, and after which to go on.

        `kind`: only those of an artifact type. A subject that is not there has none.
        """
        require_pull(principal, repository)
        pending = _pending(principal)

        def operation(ledger: Ledger) -> tuple[list[Manifest], str | None]:
            found: list[Manifest] = []
            size, last = 0, after
            while some := ledger.referrers(repository, subject, pending, last, _AT_ONCE):
                for one in some:
                    # Their annotations are in the answer, and one may be as large as a manifest.
                    if found and size + len(one.body) > REFERRERS_BYTES:
                        return found, last
                    found.append(one)
                    size, last = size + len(one.body), one.digest
            return found, None

        page, following = await self.store.read(operation)
        descriptors = await asyncio.to_thread(lambda: [*map(_descriptor, page)])
        return [one for one in descriptors if kind in (None, one.get("artifactType"))], following


def _descriptor(one: Manifest) -> dict[str, Any]:
    return referrer(read_manifest(one.body, one.media_type), one.digest, len(one.body))


def require_pull(principal: Principal, repository: str) -> None:
    """Raise `NotFound` for a repository that the principal must not know of."""
    if not may_pull(principal, repository):
        raise NotFound(f"there is no repository {repository} for this token")


def require_push(principal: Principal, repository: str) -> None:
    """Raise `NotAllowed` for whoever may not push content."""
    if not may_push_content(principal, repository):
        raise NotAllowed(f"this token may not push to {repository}")


def _require_delete(principal: Principal, repository: str) -> None:
    if not may_move_tag(principal, repository):
        raise NotAllowed(f"this token may delete nothing in {repository}")


def _require_own(principal: Principal, repository: str, upload_id: str) -> None:
    """Raise `NotFound` for an upload that was begun elsewhere, or is not of the registry."""
    require_push(principal, repository)
    if mark_of(upload_id) != upload_mark(repository, _pending(principal)):
        raise NotFound("there is no such upload")


def _pending(principal: Principal) -> str:
    if isinstance(principal, Attempt):
        return attempt_name(principal.build_id, principal.fence)
    return ""


def _require_parts(
    ledger: Ledger,
    repository: str,
    reading: Reading,
    pending: str,
    size_here: Callable[[str], int | None],
) -> None:
    """Refuse a manifest whose parts the pusher does not see, or that says something else of them.

    Raises:
        BlobUnknown: a part was not pushed; the subject may come later, or never.
        ManifestInvalid: one is of another size or type than is said.
    """
    for part in reading.manifests:
        _require_manifest(ledger, repository, part, pending)
    for part in reading.blobs:
        there = (
            size_here(part.digest) if ledger.has_blob(repository, part.digest, pending) else None
        )
        if there is None:
            raise BlobUnknown(f"the manifest refers to {part.digest}, which was not pushed")
        part.require_size(there)
    subject = reading.subject
    if subject and ledger.manifest(repository, subject.digest, pending) is not None:
        _require_manifest(ledger, repository, subject, pending)


def _require_manifest(ledger: Ledger, repository: str, part: Part, pending: str) -> None:
    found = ledger.manifest(repository, part.digest, pending)
    if found is None:
        raise BlobUnknown(f"the index refers to {part.digest}, which was not pushed")
    part.require_manifest(found.media_type, len(found.body))
