"""Endpoints for whoever submits builds."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.build import CancelRequest, Rerun, WhyRequest
from pierhead.protocol.codec import to_wire
from pierhead.protocol.plan import Submit
from pierhead.router.domain.logbook import Cursor, parse_cursor
from pierhead.router.http.requests import Authenticate, answer, document, number
from pierhead.router.services.again import Again
from pierhead.router.services.events import Events
from pierhead.router.services.submit import Submissions
from pierhead.router.services.why import Reasons
from pierhead.server.sse import EventStream, frame

LOG_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildHandlers:
    """Submit, look, follow, cancel."""

    authenticate: Authenticate
    submissions: Submissions
    again: Again
    reasons: Reasons
    events: Events

    async def submit(self, request: Request) -> Response:
        """`POST /api/builds`."""
        principal = await self.authenticate(request)
        return answer(await self.submissions.submit(principal, await document(request, Submit)))

    async def page(self, request: Request) -> Response:
        """`GET /api/builds`."""
        principal, query = await self.authenticate(request), request.query_params
        limit = number(query.get("limit", "50"), "limit")
        found = await self.submissions.page(
            principal,
            query.get("project"),
            limit,
            query.get("after"),
            mine=query.get("mine") == "1",
            children=query.get("children") == "1",
        )
        return answer(found)

    async def show(self, request: Request) -> Response:
        """`GET /api/builds/{id}`."""
        principal = await self.authenticate(request)
        return answer(await self.submissions.show(principal, request.path_params["build_id"]))

    async def why(self, request: Request) -> Response:
        """`GET /api/builds/{id}/why`."""
        principal = await self.authenticate(request)
        return answer(await self.reasons.why(principal, request.path_params["build_id"]))

    async def why_not(self, request: Request) -> Response:
        """`POST /api/builds:why`."""
        principal = await self.authenticate(request)
        return answer(await self.reasons.why_not(principal, await document(request, WhyRequest)))

    async def cancel(self, request: Request) -> Response:
        """`POST /api/builds/{id}/cancel`."""
        principal = await self.authenticate(request)
        wish = await document(request, CancelRequest)
        return answer(
            await self.submissions.cancel(principal, request.path_params["build_id"], wish)
        )

    async def rerun(self, request: Request) -> Response:
        """`POST /api/builds/{id}/rerun`."""
        principal = await self.authenticate(request)
        wish = await document(request, Rerun)
        return answer(await self.again.rerun(principal, request.path_params["build_id"], wish))

    async def run_here(self, request: Request) -> Response:
        """`POST /api/builds/{id}/run-here`."""
        principal = await self.authenticate(request)
        return answer(await self.again.run_here(principal, request.path_params["build_id"]))

    async def log(self, request: Request) -> Response:
        """`GET /api/builds/{id}/logs`."""
        principal = await self.authenticate(request)
        offset = number(request.query_params.get("offset", "0"), "offset")
        build_id = request.path_params["build_id"]
        data = await self.events.log(principal, build_id, offset, LOG_BYTES_MAX)
        return Response(data, media_type="application/octet-stream")

    async def follow(self, request: Request) -> Response:
        """`GET /api/builds/{id}/events`."""
        principal = await self.authenticate(request)
        said = request.headers.get("last-event-id")
        cursor = parse_cursor(said) if said else Cursor()
        stored = await self.events.stored(principal, request.path_params["build_id"])
        stream = self.events.stream(stored.id, cursor)
        return EventStream(frame(event.cursor, to_wire(event)) async for event in stream)
