"""Endpoints for projects, environments, tokens, and whoever asks what this is."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.meta import Meta, PullTokenRequest
from pierhead.protocol.project import NewEnvironment, NewProject, NewToken
from pierhead.protocol.version import RELEASE, SPOKEN
from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.domain.token import require_submitter, token_hash
from pierhead.router.http.requests import (
    Authenticate,
    answer,
    document,
    number,
    token_of,
)
from pierhead.router.services.capabilities import CapabilitiesOf
from pierhead.router.services.identity import Identity
from pierhead.router.services.projects import Projects
from pierhead.router.services.tokens import Tokens
from pierhead.router.services.views import token_view

_LIMIT = "50"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectHandlers:
    """Projects and environments, and what this control plane is."""

    authenticate: Authenticate
    projects: Projects
    able: CapabilitiesOf

    async def meta(self, _request: Request) -> Response:
        """`GET /api/meta`, for everybody."""
        return answer(Meta(low=SPOKEN.low, high=SPOKEN.high, release=RELEASE))

    async def capabilities(self, request: Request) -> Response:
        """`GET /api/capabilities`."""
        return answer(await self.able.look(await self.authenticate(request)))

    async def page(self, request: Request) -> Response:
        """`GET /api/projects`, with limit and after."""
        principal, after = await self.authenticate(request), request.query_params.get("after", "")
        return answer(await self.projects.page(principal, _limit(request), after))

    async def add(self, request: Request) -> Response:
        """`POST /api/projects`."""
        principal = await self.authenticate(request)
        return answer(await self.projects.add(principal, await document(request, NewProject)))

    async def show(self, request: Request) -> Response:
        """`GET /api/projects/{name}`."""
        principal = await self.authenticate(request)
        return answer(await self.projects.show(principal, request.path_params["project"]))

    async def remove(self, request: Request) -> Response:
        """`DELETE /api/projects/{name}`, with plan=true to be told only."""
        principal, name = await self.authenticate(request), request.path_params["project"]
        plan = request.query_params.get("plan", "false")
        if plan not in {"true", "false"}:
            raise InvalidRequest("plan is true or false")
        return answer(await self.projects.remove(principal, name, plan=plan == "true"))

    async def environments(self, request: Request) -> Response:
        """`GET /api/environments?project=`, with limit and after."""
        principal, query = await self.authenticate(request), request.query_params
        project, after = _required(request, "project"), query.get("after", "")
        return answer(await self.projects.environments(principal, project, _limit(request), after))

    async def add_environment(self, request: Request) -> Response:
        """`POST /api/environments`."""
        principal = await self.authenticate(request)
        wanted = await document(request, NewEnvironment)
        return answer(await self.projects.add_environment(principal, wanted))

    async def remove_environment(self, request: Request) -> Response:
        """`DELETE /api/environments?project=&name=`."""
        principal = await self.authenticate(request)
        project, name = _required(request, "project"), _required(request, "name")
        return answer(await self.projects.remove_environment(principal, project, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHandlers:
    """Tokens: made, listed, revoked."""

    authenticate: Authenticate
    identity: Identity
    tokens: Tokens

    async def page(self, request: Request) -> Response:
        """`GET /api/tokens`, with project (none: the owner's), limit and after."""
        principal, query = await self.authenticate(request), request.query_params
        project, after = query.get("project"), query.get("after")
        return answer(await self.tokens.page(principal, project, _limit(request), after))

    async def add(self, request: Request) -> Response:
        """`POST /api/tokens`."""
        principal = await self.authenticate(request)
        made = answer(await self.tokens.add(principal, await document(request, NewToken)))
        made.headers["Cache-Control"] = "no-store"
        return made

    async def add_pull(self, request: Request) -> Response:
        """`POST /api/projects/{name}/pull-tokens`."""
        principal, name = await self.authenticate(request), request.path_params["project"]
        wanted = await document(request, PullTokenRequest)
        return answer(await self.tokens.add_pull(principal, name, wanted))

    async def mine(self, request: Request) -> Response:
        """`GET /api/tokens/self`: the token that asks."""
        require_submitter(await self.authenticate(request))
        credential, _ = await self.identity.credential(token_hash(token_of(request)))
        return answer(token_view(self.identity.as_used(credential)))

    async def revoke(self, request: Request) -> Response:
        """`DELETE /api/tokens/{id}`."""
        principal = await self.authenticate(request)
        return answer(await self.tokens.revoke(principal, request.path_params["token_id"]))


def _limit(request: Request) -> int:
    return number(request.query_params.get("limit", _LIMIT), "limit")


def _required(request: Request, name: str) -> str:
    """Return a parameter of the query.

    Raises:
        InvalidRequest: it is missing.
    """
    found = request.query_params.get(name)
    if not found:
        raise InvalidRequest(f"say which: ?{name}=")
    return found
