"""Brings a packed context to the control plane by parts, and goes on after a cut."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import retrying
from pierhead.protocol.errors import Refused, Unavailable
from pierhead.protocol.plan import ContextRef, UploadRequest, UploadStatus

PART_BYTES: Final = 8 * 1024 * 1024
PATIENCE_SECONDS: Final = 60.0


async def upload(
    client: RouterClient,
    project: str,
    ref: ContextRef,
    file: Path,
    progress: Callable[[int], None] = lambda _done: None,
) -> int:
    """Upload a context and return how many bytes were sent; 0: it was there already.

    Raises:
        PierheadError: the control plane refuses it, or was away for a minute.
    """
    request = UploadRequest(project=project, digest=ref.digest, size_bytes=ref.size_bytes)
    status = await _patiently(lambda: client.begin_upload(request))
    sent = 0
    while not status.complete:
        upload_id = status.id or ""
        part = await asyncio.to_thread(_read, file, status.offset)
        try:
            status = await client.upload_part(upload_id, status.offset, part)
            sent += len(part)
        except (Unavailable, Refused) as error:
            if isinstance(error, Refused) and error.problem.next_offset is None:
                # The upload is gone: perhaps its last part arrived and only the answer was lost.
                status = await _patiently(lambda: client.begin_upload(request))
                continue
            status = await _status(client, upload_id, request)
        progress(status.offset)
    return sent


async def _status(client: RouterClient, upload_id: str, request: UploadRequest) -> UploadStatus:
    """Ask how far an upload is; one that is gone was either finished or has to begin anew."""
    try:
        return await _patiently(lambda: client.upload_status(upload_id))
    except Refused:
        return await _patiently(lambda: client.begin_upload(request))


async def _patiently(call: Callable[[], Awaitable[UploadStatus]]) -> UploadStatus:
    async for attempt in retrying(PATIENCE_SECONDS):
        with attempt:
            return await call()
    raise AssertionError("retrying ends by a value or an error")


def _read(file: Path, offset: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(PART_BYTES)
