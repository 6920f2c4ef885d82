"""An endpoint: what is called, by whom, what goes in and what comes out.

The table of endpoints is the API. Routes are made from it, and so is the OpenAPI document, so that
nothing can be served that is not described, and nothing described that is not served.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# anybody: no token. submitter: the owner, or a token of the project. attempt: a build token, with
# the fence in its header.
Who: TypeAlias = Literal["anybody", "submitter", "owner", "runner", "attempt"]
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Document: TypeAlias = Any  # the type of a model, or a union of some

EVENT_STREAM: Final = "text/event-stream"
OCTETS: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """A body that is not a document: its media type, and the largest size in bytes if bounded."""

    media_type: str = OCTETS
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the query or a header that an endpoint reads, beside those of its `who`."""

    name: str
    summary: str
    place: Literal["query", "header"] = "query"
    kind: Literal["string", "integer", "boolean"] = "string"
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Documents that come one after the other, as events or as lines."""

    document: Document
    media_type: str = EVENT_STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str  # as Starlette writes it
    handler: Handler
    who: Who
    summary: str
    answer: Document | Bytes | Stream | None
    body: Document | Bytes | None = None
    parameters: tuple[Parameter, ...] = ()

    def route(self) -> Route:
        """Return what the framework needs of it."""
        return Route(self.path, self.handler, methods=[self.method])
