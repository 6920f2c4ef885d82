"""Endpoints for runners, and for owners who let them in."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.lease import Acquire
from pierhead.protocol.runner import AddRunner, Enroll, SessionRelease, SessionRequest
from pierhead.router.domain.token import require_runner
from pierhead.router.http.requests import (
    Authenticate,
    answer,
    check_protocol,
    document,
    while_connected,
)
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

    async def remove(self, request: Request) -> Response:
        """`DELETE /api/runners/{name}`."""
        principal = await self.authenticate(request)
        return answer(await self.runners.remove(principal, request.path_params["runner"]))

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

    async def release(self, request: Request) -> Response:
        """`POST /api/runners/release`."""
        runner = require_runner(await self.authenticate(request))
        return answer(await self.runners.release(runner, await document(request, SessionRelease)))

    async def acquire(self, request: Request) -> Response:
        """`POST /api/runners/acquire`, held."""
        runner = require_runner(await self.authenticate(request))
        wanted = await document(request, Acquire)
        return answer(await while_connected(request, self.runners.acquire(runner, wanted)))
