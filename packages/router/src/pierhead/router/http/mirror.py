"""`/v2/` with `ns=HOST`: images of other registries, as containerd asks its mirrors for them."""

import re
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope, Send

from pierhead.protocol.digest import parse_digest
from pierhead.protocol.errors import PierheadError
from pierhead.router.domain.errors import InvalidRequest, NotFound, Refused
from pierhead.router.domain.token import Principal
from pierhead.router.domain.upstream import registry_host
from pierhead.router.services.mirror import Coming, Mirror
from pierhead.router.services.views import written
from pierhead.server.files import CUT, FileBody, RangeBody

DIGEST_HEADER: Final = "Docker-Content-Digest"
# Seconds since the epoch would do; this is for people who look at it.
STALE_HEADER: Final = "Pierhead-Stale-Since"
_BLOB: Final = "application/octet-stream"
_PATH: Final = re.compile(r"(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<reference>[^/]+)\Z")
_FROM: Final = re.compile(r"bytes=(\d{1,15})-\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorHandlers:
    """What is read of other registries. `own`: hosts that are this registry itself."""

    mirror: Mirror
    own: frozenset[str]

    def elsewhere(self, request: Request) -> str | None:
        """Return which other registry is meant; none: this one."""
        said = request.query_params.get("ns")
        host = registry_host(said) if said else None
        return None if host in self.own else host

    async def answer(self, request: Request, who: Principal, host: str) -> Response:
        """Answer `GET` and `HEAD` of manifests and blobs."""
        path = request.path_params["path"]
        found = _PATH.match(path)
        if found is None or request.method not in {"GET", "HEAD"}:
            raise NotFound(f"{request.method} /v2/{path[:140]} is not for other registries")
        name, reference = found["name"], found["reference"]
        if found["kind"] == "manifests":
            return await self._manifest(request, who, host, name, reference)
        return await self._blob(request, who, host, name, _digest(reference))

    async def _manifest(
        self, request: Request, who: Principal, host: str, name: str, reference: str
    ) -> Response:
        found = await self.mirror.manifest(who, host, name, reference)
        manifest = found.manifest
        headers = {DIGEST_HEADER: manifest.digest, "Content-Length": str(len(manifest.body))}
        if found.stale_since is not None:
            headers[STALE_HEADER] = written(found.stale_since)
        body = b"" if request.method == "HEAD" else manifest.body
        return Response(body, media_type=manifest.media_type, headers=headers)

    async def _blob(
        self, request: Request, who: Principal, host: str, name: str, digest: str
    ) -> Response:
        headers = {DIGEST_HEADER: digest}
        if request.method == "HEAD":
            size = await self.mirror.blob_size(who, host, name, digest)
            length = {"Content-Length": str(size)} if size is not None else {}
            return Response(media_type=_BLOB, headers={**headers, **length})
        after_cut = _FROM.match(request.headers.get("range", "")) is not None
        found = await self.mirror.blob(who, host, name, digest, after_cut=after_cut)
        if isinstance(found, Coming):
            return ComingBody(found, headers=headers)
        try:
            return FileBody(found, media_type=_BLOB, etag=digest, headers=headers)
        except FileNotFoundError as error:  # it was just given up
            raise NotFound(f"{host}/{name} has no blob {digest} any more") from error


class ComingBody(RangeBody):
    """Answers with a blob that still comes in. When it comes to nothing, it stays unfinished."""

    def __init__(self, coming: Coming, *, headers: dict[str, str]) -> None:
        self.coming = coming
        size = coming.size_bytes or 0
        super().__init__(size, media_type=_BLOB, etag=coming.digest, headers=headers)

    async def send_range(self, scope: Scope, send: Send, start: int, end: int) -> None:
        """Send it as it comes."""
        try:
            async for piece in self.coming.read(start, end):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (Refused, PierheadError):
            if CUT not in scope.get("extensions", {}):
                raise
            await send({"type": CUT})  # whoever brings it in has logged why


def _digest(text: str) -> str:
    try:
        return parse_digest(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
