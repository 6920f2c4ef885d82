"""Pushes an image from an OCI layout to the router's registry: only what is missing, as it is.

Blobs go in parts that fit through any proxy, and go on after a cut from where the registry says.
The manifest is the very bytes whose digest the result names; it is never made again.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urljoin

import httpx

from pierhead.protocol.client.client import error_from
from pierhead.protocol.client.failure import reason
from pierhead.protocol.client.http import REFUSAL_BYTES_MAX, whole
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.errors import IntegrityError, PierheadError, Refused, Unavailable
from pierhead.protocol.problem import problem
from pierhead.protocol.version import OFFSET_HEADER
from pierhead.runner.ports import Built

T = TypeVar("T")
PART_BYTES: Final = 8 * 1024 * 1024
AT_ONCE: Final = 3
PATIENCE_SECONDS: Final = 120.0
STORAGE_FULL: Final = 507  # RFC 4918, 11.5
_OFFSET: Final = re.compile(r"[0-9]{1,15}\Z")


class Pusher:
    """Pushes to one repository."""

    def __init__(self, http: httpx.AsyncClient, repository: str) -> None:
        self._http = http
        self._base = f"/v2/{repository}"
        self.sent_bytes = 0
        self.present_bytes = 0
        self.sent_layers = 0

    async def push(self, built: Built) -> None:
        """Push blobs, then the manifest by its digest.

        Raises:
            IntegrityError: the registry says another digest.
            Unavailable: it could not be reached for some minutes.
        """
        manifest = json.loads(built.image.manifest)
        blobs = {part["digest"]: part["size"] for part in [manifest["config"], *manifest["layers"]]}
        gate = asyncio.Semaphore(AT_ONCE)

        layers = {part["digest"] for part in manifest["layers"]}

        async def one(digest: str, size: int) -> None:
            async with gate:
                was_sent = await self._again(lambda: self._blob(built.layout, digest, size))
                self.sent_layers += was_sent and digest in layers

        await _all_or_none([one(digest, size) for digest, size in blobs.items()])
        await self._again(lambda: self._manifest(built))

    async def _blob(self, layout: Path, digest: str, size: int) -> bool:
        """Bring one blob; false: it was there."""
        url = f"{self._base}/blobs/{digest}"
        if (await self._send("HEAD", url, missing_is_fine=True)).status_code == 200:
            self.present_bytes += size
            return False
        begun = await self._send("POST", f"{self._base}/blobs/uploads/")
        location, offset = self._location(begun), 0
        file = layout / "blobs" / digest.replace(":", "/", 1)
        while offset < size:
            try:
                location, offset = await self._part(file, location, offset)
            except Unavailable as error:
                if error.problem.slug == "storage-full":
                    raise  # people hear of that at once
                # The cut part may have arrived in part: the registry knows how much.
                location, offset = await self._resume(location)
            except _OutOfStep as error:
                before = offset
                location, offset = await self._resume(location)
                if offset == before:
                    detail = "the registry refuses the part that it waits for"
                    raise Unavailable(problem("dependency-unavailable", detail)) from error
        # Merged: registries keep the state of an upload in the query of its address.
        await self._send("PUT", str(httpx.URL(location).copy_merge_params({"digest": digest})))
        return True

    async def _part(self, file: Path, location: str, offset: int) -> tuple[str, int]:
        part = await asyncio.to_thread(_read, file, offset, PART_BYTES)
        headers = {
            "Content-Range": f"{offset}-{offset + len(part) - 1}",
            "Content-Type": "application/octet-stream",
        }
        answer = await self._send("PATCH", location, content=part, headers=headers)
        self.sent_bytes += len(part)
        return self._location(answer), offset + len(part)

    async def _resume(self, location: str) -> tuple[str, int]:
        """Ask where to go on.

        Raises:
            Unavailable: the upload is gone or spoilt; begin the blob again.
        """
        try:
            answer = await self._again(lambda: self._send("GET", location))
        except Refused as error:
            raise Unavailable(problem("dependency-unavailable", str(error))) from error
        return self._location(answer), _arrived(answer.headers)

    async def _manifest(self, built: Built) -> None:
        image = built.image
        digest = image.platform.manifest_digest
        answer = await self._send(
            "PUT",
            f"{self._base}/manifests/{digest}",
            content=image.manifest,
            headers={"Content-Type": image.media_type},
        )
        said = answer.headers.get("docker-content-digest", digest)
        if said != digest:
            detail = f"the registry has {said}, {digest} was pushed"
            raise IntegrityError(problem("digest-mismatch", detail))

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patiently(call, PATIENCE_SECONDS, through_full_disk=False)

    async def _send(
        self,
        method: str,
        url: str,
        *,
        missing_is_fine: bool = False,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        request = self._http.build_request(method, url, content=content, headers=headers)
        try:
            answer = await self._http.send(request, stream=True)
            said = await whole(answer, REFUSAL_BYTES_MAX)
        except httpx.HTTPError as error:
            detail = f"the registry does not answer: {reason(error)}"
            raise Unavailable(problem("dependency-unavailable", detail)) from error
        if answer.is_success or (missing_is_fine and answer.status_code == 404):
            return answer
        if answer.status_code == 416 and method == "PATCH":
            raise _OutOfStep
        raise _refusal(answer, said)

    def _location(self, answer: httpx.Response) -> str:
        return urljoin(str(answer.request.url), answer.headers["location"])


class _OutOfStep(Exception):
    """The registry has more of the blob, or less, than this side believes."""


def _arrived(headers: httpx.Headers) -> int:
    """Return how many bytes of an upload the registry has.

    `Range: 0-0` is what registries say of an empty upload, and of one with a single byte. Ours
    says the number too; of others the upload is begun again, for one byte more or less.
    """
    exact = headers.get(OFFSET_HEADER, "")
    if _OFFSET.match(exact):
        return int(exact)
    end = headers.get("range", "").rpartition("-")[2]
    if not _OFFSET.match(end) or end == "0":
        detail = "the registry does not say how much of the blob has arrived"
        raise Unavailable(problem("dependency-unavailable", detail))
    return int(end) + 1


async def _all_or_none(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Do all of it at once; the first error ends the rest.

    Not a `TaskGroup`: that of Python 3.11 leaves the task in which one fails marked as cancelled,
    and no timeout of it would be told as one any more.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # harmless where it has ended
        await asyncio.gather(*tasks, return_exceptions=True)


def _refusal(answer: httpx.Response, content: bytes) -> PierheadError:
    """Return the error for a registry's refusal, with what it said."""
    try:
        said = json.loads(content)["errors"][0]
        text = f"{said['code']}: {said.get('message', '')}"
    except (ValueError, LookupError, TypeError):
        return error_from(answer.status_code, answer.headers, content)
    if answer.status_code == STORAGE_FULL:
        return Unavailable(problem("storage-full", f"the registry says {text}"))
    if answer.status_code >= 500 or answer.status_code == 429:
        return Unavailable(problem("dependency-unavailable", f"the registry says {text}"))
    return Refused(problem("not-allowed", f"the registry says {text}"))


def _read(file: Path, offset: int, size: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(size)
