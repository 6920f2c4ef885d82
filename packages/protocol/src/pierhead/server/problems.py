"""Problem documents as answers, and request bodies that cannot grow without end."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pierhead.protocol.codec import to_wire
from pierhead.protocol.errors import Invalid, PierheadError
from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE, Problem, problem
from pierhead.server.log import get_logger

_BY_STATUS: Final = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}
log = get_logger()


def problem_response(found: Problem, headers: dict[str, str] | None = None) -> Response:
    """Return the answer for a problem."""
    headers = dict(headers or {})
    if found.status == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    if found.status in {429, 503}:
        headers.setdefault("Retry-After", retry_after(found.retry_after_ms or 1000))
    return Response(
        to_wire(found), status_code=found.status, media_type=PROBLEM_MEDIA_TYPE, headers=headers
    )


def retry_after(milliseconds: int) -> str:
    """Return the header of this name for a time: whole seconds (RFC 9110, 10.2.3)."""
    return str(-(-milliseconds // 1000))


async def on_pierhead_error(_request: Request, error: Exception) -> Response:
    """Answer with the problem that the error carries."""
    assert isinstance(error, PierheadError)
    return problem_response(error.problem)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    slug = _BY_STATUS.get(error.status_code, "invalid-document")
    return problem_response(problem(slug, f"{request.method} {request.url.path}: {error.detail}"))


async def on_gone(_request: Request, error: Exception) -> Response:
    """Answer a client that is not there any more: nobody reads it, and nothing is wrong."""
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=204)


async def on_bug(request: Request, error: Exception) -> Response:
    """Log what nobody expected, and tell the client no more than that it happened."""
    log.error("request.failed", path=request.url.path, exc_info=error)
    return problem_response(problem("internal-error", "the server could not answer; see its log"))


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body, reading no more than `limit` bytes of it.

    Raises:
        Invalid: the body is larger.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Invalid(problem("too-large", f"the body is over {limit} bytes"))
    return bytes(body)
