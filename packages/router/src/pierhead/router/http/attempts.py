"""Endpoints for whoever holds a build token."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.codec import to_wire
from pierhead.protocol.lease import HOLD_MS_MAX, Heartbeat, Release
from pierhead.protocol.result import Envelope
from pierhead.router.domain.errors import InvalidRequest, NotFound
from pierhead.router.domain.logbook import PART_BYTES_MAX
from pierhead.router.http.requests import (
    Authenticate,
    answer,
    attempt_of,
    decompressed,
    document,
    offset_of,
    while_connected,
)
from pierhead.router.services.attempts import Attempts
from pierhead.router.services.contexts import Contexts
from pierhead.router.services.views import view_of
from pierhead.server.files import PartsBody
from pierhead.server.problems import read_body


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHandlers:
    """Fetch, renew, log, release, report."""

    authenticate: Authenticate
    attempts: Attempts
    contexts: Contexts

    async def plan(self, request: Request) -> Response:
        """`GET /api/builds/{id}/plan`."""
        stored = await self.attempts.held(await attempt_of(request, self.authenticate))
        return Response(to_wire(stored.submit.plan), media_type="application/json")

    async def context(self, request: Request) -> Response:
        """`GET /api/builds/{id}/context.tar.zst`, with Range."""
        stored = await self.attempts.held(await attempt_of(request, self.authenticate))
        submit = stored.submit
        archive = await self.contexts.archive(submit.project, submit.context.digest)
        if archive is None:
            hint = "build it again: its context is sent again then"
            raise NotFound("the context is not here any more", hint=hint)
        return PartsBody(archive.parts, media_type="application/zstd", etag=archive.tag)

    async def secrets(self, request: Request) -> Response:
        """`GET /api/builds/{id}/secrets`."""
        attempt = await attempt_of(request, self.authenticate)
        sealed = answer(await self.attempts.secrets(attempt))
        sealed.headers["Cache-Control"] = "no-store"
        return sealed

    async def heartbeat(self, request: Request) -> Response:
        """`POST /api/builds/{id}/heartbeat`."""
        attempt = await attempt_of(request, self.authenticate)
        return answer(await self.attempts.renew(attempt, await document(request, Heartbeat)))

    async def signals(self, request: Request) -> Response:
        """`GET /api/builds/{id}/signals`, held."""
        attempt = await attempt_of(request, self.authenticate)
        signals = self.attempts.signals(attempt, HOLD_MS_MAX / 1000)
        return answer(await while_connected(request, signals))

    async def log(self, request: Request) -> Response:
        """`PATCH /api/builds/{id}/logs`."""
        attempt = await attempt_of(request, self.authenticate)
        offset = offset_of(request)
        # zstd makes incompressible bytes a little longer.
        body = await read_body(request, PART_BYTES_MAX + 1024)
        match request.headers.get("content-encoding", "identity"):
            case "identity":
                pass
            case "zstd":
                body = decompressed(body, PART_BYTES_MAX)
            case other:
                raise InvalidRequest(f"a part is plain or zstd, not {other[:20]}")
        return answer(await self.attempts.append_log(attempt, offset, body))

    async def release(self, request: Request) -> Response:
        """`POST /api/builds/{id}/release`."""
        attempt = await attempt_of(request, self.authenticate)
        stored = await self.attempts.release(attempt, await document(request, Release))
        return answer(view_of(stored))

    async def report(self, request: Request) -> Response:
        """`POST /api/builds/{id}/result`."""
        attempt = await attempt_of(request, self.authenticate)
        return answer(await self.attempts.report(attempt, await document(request, Envelope)))
