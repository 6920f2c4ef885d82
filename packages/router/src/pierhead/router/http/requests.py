"""What handlers read from a request, checked and bounded."""

import asyncio
import base64
import io
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import zstandard
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pierhead.protocol.codec import DOCUMENT_BYTES_MAX, from_wire, to_wire
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.problem import problem
from pierhead.protocol.version import FENCE_HEADER, OFFSET_HEADER, PROTOCOL_HEADER, SPOKEN, Versions
from pierhead.router.domain.errors import InvalidRequest, Refused, TooLarge, Unauthenticated
from pierhead.router.domain.token import Attempt, Principal, require_attempt
from pierhead.server.frames import unframed
from pierhead.server.problems import (
    on_bug,
    on_gone,
    on_http_exception,
    on_pierhead_error,
    problem_response,
    read_body,
)

T = TypeVar("T")
Authenticate: TypeAlias = Callable[[Request], Awaitable[Principal]]
TOKEN_BYTES_MAX = 4096
_WINDOW_BYTES: Final = 2**23
_SEND = "pierhead login URL, or set PIERHEAD_TOKEN"


def token_of(request: Request) -> str:
    """Return the token of a request: a bearer's, or the password of Basic.

    Raises:
        Unauthenticated: there is none.
    """
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if not value or len(value) > TOKEN_BYTES_MAX:
        raise Unauthenticated("no token was sent", hint=_SEND)
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError as error:
            detail = "the Basic credentials are not base64 of text"
            raise Unauthenticated(detail, hint=_SEND) from error
    raise Unauthenticated(f"tokens are sent as Bearer, not as {scheme[:20]}", hint=_SEND)


def check_protocol(request: Request, spoken: Versions = SPOKEN) -> None:
    """Raise `VersionUnsupported` when the client speaks none of our versions of the protocol."""
    said = request.headers.get(PROTOCOL_HEADER)
    version = spoken.high if said is None else number(said, PROTOCOL_HEADER)
    if version not in spoken:
        older = "this control plane" if version > spoken.high else "your side"
        detail = f"this control plane speaks protocol {spoken.low} to {spoken.high}, not {version}"
        hint = f"{older} is the older one: pip install -U pierhead there"
        raise VersionUnsupported(detail, hint=hint, low=spoken.low, high=spoken.high)


class VersionUnsupported(Refused):
    """The client speaks another version of the protocol."""

    slug = "version-unsupported"


async def document(request: Request, kind: type[T]) -> T:
    """Return the document in the body.

    Raises:
        Invalid: it is not one of this kind, or too large.
    """
    return from_wire(kind, await read_body(request, DOCUMENT_BYTES_MAX))


async def attempt_of(request: Request, authenticate: Authenticate) -> Attempt:
    """Return the attempt that the token and the fence in the header prove."""
    principal = await authenticate(request)
    build_id = request.path_params["build_id"]
    fence = number(request.headers.get(FENCE_HEADER), FENCE_HEADER)
    return require_attempt(principal, build_id, fence)


def offset_of(request: Request) -> int:
    """Return where the part in the body begins."""
    return number(request.headers.get(OFFSET_HEADER), OFFSET_HEADER)


def number(text: str | None, what: str) -> int:
    """Return a whole number that came as text.

    Raises:
        InvalidRequest: it is missing or not a number.
    """
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise InvalidRequest(f"{what} has to be a whole number")
    return int(text)


def decompressed(data: bytes, limit: int) -> bytes:
    """Return what zstd frames hold, never much more than `limit` bytes of memory for it.

    Raises:
        TooLarge, InvalidRequest: it holds more, or is not a frame, or not a whole one.
    """
    plain = bytearray()
    try:
        for piece in unframed(io.BytesIO(data), _WINDOW_BYTES):
            plain += piece
            if len(plain) > limit:
                raise TooLarge(f"a part holds at most {limit} bytes")
    except (zstandard.ZstdError, EOFError) as error:
        raise InvalidRequest("the part is not zstd, or not all of it") from error
    return bytes(plain)


async def while_connected(request: Request, doing: Coroutine[Any, Any, T]) -> T:
    """Return what is waited for, unless the client goes away: then there is nobody to hold for.

    The request's body has to be read before.

    Raises:
        ClientDisconnect: the client went away.
    """
    held = asyncio.ensure_future(doing)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((held, gone), return_when=asyncio.FIRST_COMPLETED)
        if not held.done():
            raise ClientDisconnect
        return held.result()
    finally:
        gone.cancel()
        held.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answer(model: msgspec.Struct, status: int = 200) -> Response:
    """Return a document as the answer."""
    return Response(to_wire(model), status_code=status, media_type="application/json")


async def on_refused(_request: Request, error: Exception) -> Response:
    """Answer a refusal of the rules with its problem document."""
    assert isinstance(error, Refused)
    return problem_response(problem(error.slug, str(error), hint=error.hint, **error.members))


EXCEPTION_HANDLERS: Final = {
    Refused: on_refused,
    PierheadError: on_pierhead_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_gone,
    Exception: on_bug,
}
