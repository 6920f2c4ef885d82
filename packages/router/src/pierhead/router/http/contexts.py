"""Endpoints for contexts: what is missing of one, its content, and the archive for its runner."""

import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pierhead.protocol.plan import ContextOffer
from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.http.requests import Authenticate, answer, document
from pierhead.router.ports import Archive
from pierhead.router.services.contexts import Contexts

_RANGE: Final = re.compile(r"bytes=([0-9]{1,15})-([0-9]{1,15})?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextHandlers:
    """Offer and send."""

    authenticate: Authenticate
    contexts: Contexts

    async def offer(self, request: Request) -> Response:
        """`POST /api/contexts`."""
        principal = await self.authenticate(request)
        return answer(await self.contexts.offer(principal, await document(request, ContextOffer)))

    async def keep(self, request: Request) -> Response:
        """`POST /api/contexts/objects`."""
        principal = await self.authenticate(request)
        project = request.query_params.get("project", "")
        if not project:
            raise InvalidRequest("the query lacks the project", hint="add ?project=NAME")
        return answer(await self.contexts.keep(principal, project, request.stream()))


def archive_response(request: Request, archive: Archive) -> Response:
    """Return an archive, or the part of it that a Range names if it is still the same archive."""
    tag, size = f'"{archive.tag}"', archive.size_bytes
    headers = {"ETag": tag, "Accept-Ranges": "bytes"}
    wanted = _RANGE.match(request.headers.get("range", ""))
    if wanted is None or request.headers.get("if-range", tag) != tag:
        begin, end, status = 0, size, 200
    else:
        begin, status = int(wanted[1]), 206
        end = min(int(wanted[2]) + 1, size) if wanted[2] else size
        if begin >= end:
            return Response(
                status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"}
            )
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    headers["Content-Length"] = str(end - begin)
    content = archive.read(begin, end)
    return StreamingResponse(content, status, headers, media_type="application/zstd")
