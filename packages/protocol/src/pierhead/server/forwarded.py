"""What a reverse proxy says of its visitors, believed from its own addresses only.

A token that came to the proxy in the clear was heard by whoever was listening: it is refused, so
that the mistake is noticed and not lived with.
"""

import ipaddress
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from pierhead.protocol.problem import problem
from pierhead.server.door import Network
from pierhead.server.problems import problem_response

_PROTO: Final = b"x-forwarded-proto"


class SecureOnly:
    """Answers only visitors who came to the proxy over TLS; others have to do with no proxy."""

    def __init__(self, app: ASGIApp, proxies: tuple[Network, ...]) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "http" and self._proxies and self._came_in_the_clear(scope):
            hint = "write https:// instead of http://; a token that was sent so should be replaced"
            refused = problem("not-allowed", "the proxy was asked in the clear", hint=hint)
            await problem_response(refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _came_in_the_clear(self, scope: Scope) -> bool:
        said = [value.strip().lower() for name, value in scope["headers"] if name == _PROTO]
        if said != [b"http"] or scope["client"] is None:
            return False
        peer = ipaddress.ip_address(scope["client"][0])
        return any(peer in network for network in self._proxies)
