"""Endpoints for the certificate authority."""

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pierhead.protocol.authority import Replace, Rotate
from pierhead.protocol.loopback import is_loopback
from pierhead.protocol.version import AUTHORITIES_HEADER
from pierhead.router.http.requests import Authenticate, answer, document
from pierhead.router.services.authority import Authorities

_NAME: Final = AUTHORITIES_HEADER.lower().encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityHandlers:
    """Show it, change it, replace it."""

    authenticate: Authenticate
    authorities: Authorities

    async def show(self, request: Request) -> Response:
        """`GET /api/ca`."""
        return answer(await self.authorities.show(await self.authenticate(request)))

    async def begin(self, request: Request) -> Response:
        """`POST /api/ca/rotation`."""
        principal, wanted = await self.authenticate(request), await document(request, Rotate)
        return answer(await self.authorities.begin(principal, wanted, is_here=_is_here(request)))

    async def cancel(self, request: Request) -> Response:
        """`DELETE /api/ca/rotation`."""
        principal = await self.authenticate(request)
        return answer(await self.authorities.cancel(principal, is_here=_is_here(request)))

    async def advance(self, request: Request) -> Response:
        """`POST /api/ca/rotation/advance`."""
        principal = await self.authenticate(request)
        return answer(await self.authorities.advance(principal, is_here=_is_here(request)))

    async def replace(self, request: Request) -> Response:
        """`POST /api/ca/replacement`."""
        principal, wanted = await self.authenticate(request), await document(request, Replace)
        return answer(await self.authorities.replace(principal, wanted, is_here=_is_here(request)))


class TellsAuthorities:
    """Says with every answer of the API by whom the control plane is to be believed.

    Whoever verified the connection by one of them learns the others from that. It proves nothing to
    anybody else, and is no secret.
    """

    def __init__(self, app: ASGIApp, authorities: Authorities) -> None:
        self._app = app
        self._authorities = authorities

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            return await self._app(scope, receive, send)

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                pins = ",".join(self._authorities.pins())
                if pins:
                    message["headers"] = [*message["headers"], (_NAME, pins.encode())]
            await send(message)

        return await self._app(scope, receive, tell)


def _is_here(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)
