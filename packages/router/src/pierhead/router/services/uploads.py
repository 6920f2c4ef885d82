"""Contexts come in by parts, and belong to a project once their digest was checked."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from pierhead.protocol.plan import UploadRequest, UploadStatus
from pierhead.router.domain.errors import NotFound
from pierhead.router.domain.token import (
    Principal,
    ProjectHolder,
    require_project,
    require_submitter,
)
from pierhead.router.ports import Ledger, Store, StoredUpload
from pierhead.server.blobs import BlobStore

PART_BYTES_MAX: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """What submitters may do with uploads."""

    store: Store
    blobs: BlobStore

    async def begin(self, principal: Principal, request: UploadRequest) -> UploadStatus:
        """Begin an upload; a context that the project has already is complete at once."""
        require_project(principal, request.project)
        known = await self.store.read(
            lambda ledger: ledger.context_size(request.project, request.digest)
        )
        if known is not None and await self.blobs.size(request.digest) == request.size_bytes:
            return UploadStatus(id=None, offset=known, complete=True)
        upload = StoredUpload(
            id=await self.blobs.begin(),
            project=request.project,
            digest=request.digest,
            size_bytes=request.size_bytes,
        )
        await self.store.write(lambda ledger: ledger.save_upload(upload))
        return UploadStatus(id=upload.id, offset=0, complete=False)

    async def status(self, principal: Principal, upload_id: str) -> UploadStatus:
        """Return how far an upload is."""
        upload = await self._mine(principal, upload_id)
        offset = await self.blobs.offset(upload.id)
        return UploadStatus(id=upload.id, offset=offset, complete=False)

    async def append(
        self, principal: Principal, upload_id: str, offset: int, chunks: AsyncIterator[bytes]
    ) -> UploadStatus:
        """Add a part; the last one checks the digest and ends the upload."""
        upload = await self._mine(principal, upload_id)
        limit = min(upload.size_bytes, offset + PART_BYTES_MAX)
        size = await self.blobs.append(upload.id, offset, chunks, limit)
        if size < upload.size_bytes:
            return UploadStatus(id=upload.id, offset=size, complete=False)
        try:
            await self.blobs.commit(upload.id, upload.digest)
        except Exception:
            await self._end(upload, complete=False)
            raise
        await self._end(upload, complete=True)
        return UploadStatus(id=upload.id, offset=size, complete=True)

    async def _end(self, upload: StoredUpload, *, complete: bool) -> None:
        def operation(ledger: Ledger) -> None:
            ledger.end_upload(upload, complete=complete)

        await self.store.write(operation)

    async def _mine(self, principal: Principal, upload_id: str) -> StoredUpload:
        holder = require_submitter(principal)
        upload = await self.store.read(lambda ledger: ledger.upload(upload_id))
        theirs = isinstance(holder, ProjectHolder) and upload and upload.project != holder.project
        if upload is None or theirs:
            hint = "begin a new one: POST /api/uploads"
            raise NotFound(f"there is no upload {upload_id[:40]}", hint=hint)
        require_project(principal, upload.project)
        return upload
