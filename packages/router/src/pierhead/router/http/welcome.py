"""What a machine asks before it belongs to anything: the way in, and whom to believe.

Neither answer is a secret, and neither proves anything: the certificate counts for whoever knows
its fingerprint, the script for whoever checked from whom it came.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pierhead.protocol.client.trust import CA_PATH
from pierhead.router.domain.errors import NotFound

JOIN_PATH: Final = "/join"
SCRIPT: Final = Path(__file__).with_name("join.sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class WelcomeHandlers:
    """For everybody, without a token."""

    authority: Callable[[], bytes] | None  # PEM: all that are to be believed now

    async def script(self, _request: Request) -> Response:
        """`GET /join`: a shell script that lets the machine join by the code it is given."""
        return Response(SCRIPT.read_bytes(), media_type="text/x-shellscript")

    async def certificate(self, _request: Request) -> Response:
        """`GET /ca.crt`: the certificate authority, PEM."""
        if self.authority is None:
            raise NotFound("this control plane has no certificate authority of its own")
        return Response(self.authority(), media_type="application/x-pem-file")


def welcome_routes(of: WelcomeHandlers) -> list[Route]:
    """Return the routes."""
    return [
        Route(JOIN_PATH, of.script, methods=["GET"]),
        Route(CA_PATH, of.certificate, methods=["GET"]),
    ]
