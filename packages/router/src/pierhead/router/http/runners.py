"""Endpoints for runners, owners, and whoever asks what this is."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.lease import Acquire
from pierhead.protocol.meta import Meta, NewProject, PullTokenRequest
from pierhead.protocol.runner import AddRunner, Enroll, SessionRequest
from pierhead.protocol.version import RELEASE, SPOKEN
from pierhead.router.domain.token import require_runner
from pierhead.router.http.requests import (
    Authenticate,
    answer,
    check_protocol,
    document,
    while_connected,
)
from pierhead.router.services.projects import Projects
from pierhead.router.services.runners import Runners


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerHandlers:
    """Join, begin, take builds."""

    authenticate: Authenticate
    runners: Runners

    async def add(self, request: Request) -> Response:
        """`POST /api/runners`."""
        principal = await self.authenticate(request)
        return answer(await self.runners.add(principal, await document(request, AddRunner)))

    async def enroll(self, request: Request) -> Response:
        """`POST /api/runners/enroll`; the join code is the credential."""
        check_protocol(request)
        return answer(await self.runners.enroll(await document(request, Enroll)))

    async def session(self, request: Request) -> Response:
        """`PUT /api/runners/session`."""
        runner = require_runner(await self.authenticate(request))
        return answer(
            await self.runners.open_session(runner, await document(request, SessionRequest))
        )

    async def acquire(self, request: Request) -> Response:
        """`POST /api/runners/acquire`, held."""
        runner = require_runner(await self.authenticate(request))
        wanted = await document(request, Acquire)
        return answer(await while_connected(request, self.runners.acquire(runner, wanted)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectHandlers:
    """Projects, tokens, and what this control plane is."""

    authenticate: Authenticate
    projects: Projects

    async def meta(self, _request: Request) -> Response:
        """`GET /api/meta`, for everybody."""
        return answer(Meta(low=SPOKEN.low, high=SPOKEN.high, release=RELEASE))

    async def capabilities(self, request: Request) -> Response:
        """`GET /api/capabilities`."""
        return answer(await self.projects.capabilities(await self.authenticate(request)))

    async def page(self, request: Request) -> Response:
        """`GET /api/projects`."""
        return answer(await self.projects.page(await self.authenticate(request)))

    async def add(self, request: Request) -> Response:
        """`POST /api/projects`."""
        principal = await self.authenticate(request)
        return answer(await self.projects.add(principal, await document(request, NewProject)))

    async def add_token(self, request: Request) -> Response:
        """`POST /api/projects/{name}/tokens`."""
        principal = await self.authenticate(request)
        return answer(await self.projects.add_token(principal, request.path_params["project"]))

    async def add_pull_token(self, request: Request) -> Response:
        """`POST /api/projects/{name}/pull-tokens`."""
        principal, name = await self.authenticate(request), request.path_params["project"]
        wanted = await document(request, PullTokenRequest)
        return answer(await self.projects.add_pull_token(principal, name, wanted))
