"""Brings a packed context to the control plane by parts, and goes on after a cut."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import retrying
from pierhead.protocol.errors import Refused
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
    """Upload a context and return how many bytes were missing; 0: it was there already.

    Raises:
        PierheadError: the control plane refuses it, or was away for a minute.
    """
    request = UploadRequest(project=project, digest=ref.digest, size_bytes=ref.size_bytes)
    status = await _patiently(lambda: client.begin_upload(request))
    missing = 0 if status.complete else ref.size_bytes - status.offset
    while not status.complete:
        part = await asyncio.to_thread(_read, file, status.offset)
        status = await _bring(client, request, status, part)
        progress(status.offset)
    return missing


async def _bring(
    client: RouterClient, request: UploadRequest, before: UploadStatus, part: bytes
) -> UploadStatus:
    """Bring one part and return how far the upload is then."""
    async for attempt in retrying(PATIENCE_SECONDS):
        with attempt:
            if attempt.retry_state.attempt_number > 1:
                # Perhaps it arrived and only the answer was lost.
                now = await _status(client, before, request)
                if now != before:
                    return now
            return await _send(client, request, before, part)
    raise AssertionError("retrying ends by a value or an error")


async def _send(
    client: RouterClient, request: UploadRequest, before: UploadStatus, part: bytes
) -> UploadStatus:
    try:
        return await client.upload_part(before.id or "", before.offset, part)
    except Refused as error:
        if error.problem.next_offset is None and error.problem.slug != "not-found":
            raise
    return await _status(client, before, request)


async def _status(
    client: RouterClient, before: UploadStatus, request: UploadRequest
) -> UploadStatus:
    """Ask how far an upload is; one that is gone was either finished or has to begin anew."""
    try:
        return await client.upload_status(before.id or "")
    except Refused as error:
        if error.problem.slug != "not-found":
            raise
    return await client.begin_upload(request)


async def _patiently(call: Callable[[], Awaitable[UploadStatus]]) -> UploadStatus:
    async for attempt in retrying(PATIENCE_SECONDS):
        with attempt:
            return await call()
    raise AssertionError("retrying ends by a value or an error")


def _read(file: Path, offset: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(PART_BYTES)
