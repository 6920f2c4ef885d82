"""The built-in registry: blobs and manifests, visible only where they are linked.

What an attempt pushes is pending: it alone sees it, until its result is accepted and all of it
becomes the project's in one transaction. A digest that exists on the disk for another project is
unknown here, so nothing can be learned or taken by guessing.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pierhead.protocol.digest import digest_of
from pierhead.router.domain.errors import (
    DigestMismatch,
    InvalidRequest,
    NotAllowed,
    NotFound,
    OffsetMismatch,
)
from pierhead.router.domain.rights import may_move_tag, may_pull, may_push_content
from pierhead.router.domain.token import Attempt, Principal
from pierhead.router.ports import Ledger, Manifest, Store
from pierhead.router.services.lifecycle import attempt_name
from pierhead.server.blobs import BlobStore

MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024  # distribution-spec, "Pushing Manifests"
BLOB_BYTES_MAX: Final = 64 * 1024**3
_IMAGES: Final = {
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
}
_INDEXES: Final = {
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
}
_MARK_LENGTH: Final = 16


class ManifestInvalid(InvalidRequest):
    """The body is not a manifest, or not the one that the request says."""


class BlobUnknown(InvalidRequest):
    """A manifest refers to what the pusher does not see in the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What clients may do, with their rights checked first."""

    store: Store
    blobs: BlobStore

    async def blob_size(self, principal: Principal, repository: str, digest: str) -> int:
        """Return the size of a visible blob.

        Raises:
            NotFound: there is none that the principal sees.
        """
        require_pull(principal, repository)
        seen = await self.store.read(
            lambda ledger: ledger.has_blob(repository, digest, _pending(principal))
        )
        size = await self.blobs.size(digest) if seen else None
        if size is None:
            raise NotFound(f"{repository} has no blob {digest}")
        return size

    async def begin(self, principal: Principal, repository: str) -> str:
        """Begin an upload; its id is marked, so that it is of no use in another repository."""
        require_push(principal, repository)
        return await self.blobs.begin(_mark(principal, repository))

    async def mount(self, principal: Principal, repository: str, digest: str, source: str) -> bool:
        """Link a blob from another repository; false: it has to be uploaded."""
        require_push(principal, repository)
        if not may_pull(principal, source):
            return False

        def operation(ledger: Ledger) -> bool:
            seen = ledger.has_blob(source, digest, _pending(principal))
            if seen:
                ledger.link_blob(repository, digest, _pending(principal))
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
        pending = _pending(principal)
        await self.store.write(lambda ledger: ledger.link_blob(repository, digest, pending))

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
    ) -> str:
        """Store a manifest as it is, and return its digest.

        Raises:
            NotAllowed: an attempt's token was used for a tag.
            ManifestInvalid: it is not a manifest.
            BlobUnknown: it refers to what is not there.
        """
        require_push(principal, repository)
        by_digest = wanted.startswith("sha256:")
        if not by_digest and not may_move_tag(principal, repository):
            raise NotAllowed("a build pushes by digest; its tags move when its result is accepted")
        digest = digest_of(body)
        if by_digest and wanted != digest:
            raise DigestMismatch(f"the manifest is {digest}, not {wanted}")
        document = _document(body)
        kind = _media_type(media_type, document)
        manifest = Manifest(repository=repository, digest=digest, media_type=kind, body=body)

        def operation(ledger: Ledger) -> None:
            pending = _pending(principal)
            _require_parts(ledger, manifest, document, pending)
            ledger.add_manifest(manifest, pending)
            if not by_digest:
                ledger.set_tag(repository, wanted, digest)

        await self.store.write(operation)
        return digest

    async def delete_manifest(self, principal: Principal, repository: str, wanted: str) -> None:
        """Delete a manifest or a tag."""
        if not may_move_tag(principal, repository):
            raise NotAllowed(f"this token may delete nothing in {repository}")
        if not await self.store.write(lambda ledger: ledger.delete_manifest(repository, wanted)):
            raise NotFound(f"{repository} has no manifest {wanted[:140]}")

    async def tags(self, principal: Principal, repository: str) -> Sequence[str]:
        """Return all tags of a repository."""
        require_pull(principal, repository)
        return await self.store.read(lambda ledger: ledger.tags(repository))


def require_pull(principal: Principal, repository: str) -> None:
    """Raise `NotFound` for a repository that the principal must not know of."""
    if not may_pull(principal, repository):
        raise NotFound(f"there is no repository {repository} for this token")


def require_push(principal: Principal, repository: str) -> None:
    """Raise `NotAllowed` for whoever may not push content."""
    if not may_push_content(principal, repository):
        raise NotAllowed(f"this token may not push to {repository}")


def _require_own(principal: Principal, repository: str, upload_id: str) -> None:
    """Raise `NotFound` for an upload that was begun elsewhere, or is not of the registry."""
    require_push(principal, repository)
    if not upload_id.endswith(_mark(principal, repository)):
        raise NotFound("there is no such upload")


def _mark(principal: Principal, repository: str) -> str:
    whose = f"{repository}\n{_pending(principal)}".encode()
    return digest_of(whose).removeprefix("sha256:")[:_MARK_LENGTH]


def _pending(principal: Principal) -> str:
    if isinstance(principal, Attempt):
        return attempt_name(principal.build_id, principal.fence)
    return ""


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ManifestInvalid("the manifest is not JSON") from error
    if not isinstance(found, dict) or found.get("schemaVersion") != 2:
        raise ManifestInvalid("the manifest is not an OCI or Docker schema 2 manifest")
    return found


def _media_type(said: str, document: dict[str, Any]) -> str:
    """Return what a manifest is, once the request and the document agree on it.

    It is served as this later: were anything allowed, a manifest could be a web page of ours.
    """
    inside = document.get("mediaType")
    kind = said.partition(";")[0].strip().lower() or inside
    if not isinstance(kind, str) or kind not in _IMAGES | _INDEXES:
        raise ManifestInvalid(f"{str(kind)[:80]!r} is not the media type of a manifest")
    if inside not in (None, kind):
        raise ManifestInvalid(f"the manifest says it is {str(inside)[:80]!r}, the request {kind!r}")
    return kind


def _require_parts(
    ledger: Ledger, manifest: Manifest, document: dict[str, Any], pending: str
) -> None:
    """Raise `BlobUnknown` when a manifest refers to what the pusher does not see."""
    if manifest.media_type in _INDEXES:
        for part in _descriptors(document.get("manifests")):
            if ledger.manifest(manifest.repository, part, pending) is None:
                raise BlobUnknown(f"the index refers to {part}, which was not pushed")
        return
    parts = [*_descriptors([document.get("config")]), *_descriptors(document.get("layers"))]
    for part in parts:
        if not ledger.has_blob(manifest.repository, part, pending):
            raise BlobUnknown(f"the manifest refers to {part}, which was not pushed")


def _descriptors(found: object) -> list[str]:
    if not isinstance(found, list) or len(found) > 1024:
        raise ManifestInvalid("the manifest's descriptors are missing or too many")
    digests = [part.get("digest") for part in found if isinstance(part, dict)]
    if len(digests) != len(found) or not all(isinstance(digest, str) for digest in digests):
        raise ManifestInvalid("the manifest has a descriptor without a digest")
    return [str(digest) for digest in digests]
