"""Endpoints for contexts: what is missing of one, its content, and the archive for its runner."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.plan import ContextOffer
from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.http.requests import Authenticate, answer, document
from pierhead.router.services.contexts import Contexts


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
