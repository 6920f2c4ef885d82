"""What every process that answers HTTP has around its routes."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from pierhead.router.domain.token import Principal
from pierhead.router.http.requests import (
    EXCEPTION_HANDLERS,
    Authenticate,
    check_protocol,
    token_of,
)
from pierhead.router.services.identity import Identity
from pierhead.server.bounded import Patience


def application(routes: Sequence[Route], *around: Middleware) -> Starlette:
    """Return the application: refusals are problem documents, and nobody is waited for too long."""
    app = Starlette(
        routes=[*routes],
        middleware=[*around, Middleware(Patience)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False  # a path is what it is; nobody is sent to a guess
    return app


def authenticating(identity: Identity) -> Authenticate:
    """Return what tells who sends a request, and whether both speak one protocol."""

    async def authenticate(request: Request) -> Principal:
        check_protocol(request)
        return await identity.principal(token_of(request))

    return authenticate
