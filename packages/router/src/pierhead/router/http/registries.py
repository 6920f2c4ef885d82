"""Endpoints for the owner's logins at other registries."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.registry import NewRegistry
from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.http.requests import Authenticate, answer, document
from pierhead.router.services.logins import Logins


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginHandlers:
    """Logins: tried, listed, forgotten."""

    authenticate: Authenticate
    logins: Logins

    async def page(self, request: Request) -> Response:
        """`GET /api/registries`."""
        return answer(await self.logins.page(await self.authenticate(request)))

    async def add(self, request: Request) -> Response:
        """`POST /api/registries`."""
        principal = await self.authenticate(request)
        return answer(await self.logins.add(principal, await document(request, NewRegistry)))

    async def remove(self, request: Request) -> Response:
        """`DELETE /api/registries?host=`, with project for the login of one."""
        principal, query = await self.authenticate(request), request.query_params
        host = query.get("host")
        if not host:
            raise InvalidRequest("say which: ?host=")
        return answer(await self.logins.remove(principal, host, query.get("project")))
