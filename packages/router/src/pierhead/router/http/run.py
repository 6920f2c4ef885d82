"""`POST /api/builds:run`: a tar in, JSON lines out, in one call, like Docker's `/build`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pierhead.protocol.build import CancelRequest, Event, Finished
from pierhead.protocol.codec import from_wire, to_wire
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.plan import ContextRef, IfNobody, Submit
from pierhead.router.domain.errors import InvalidRequest, Refused
from pierhead.router.domain.logbook import Cursor
from pierhead.router.domain.naming import parse_tag
from pierhead.router.domain.token import Principal
from pierhead.router.http.requests import Authenticate
from pierhead.router.services.events import Events
from pierhead.router.services.run import Runs
from pierhead.router.services.submit import Submissions
from pierhead.server.endpoint import Parameter

KEY_HEADER: Final = "Idempotency-Key"
# An empty line for whoever ends what is silent; the shortest common limit is 30 s.
SILENCE_SECONDS: Final = 15.0
JSON_LINES: Final = "application/jsonl"
# fmt: off
PARAMETERS: Final = (
    Parameter(name="project", summary="Of which project; without it, the NAME of `t`."),
    Parameter(name="environment", summary="For what it is; `production` without it."),
    Parameter(name="t", summary="NAME or NAME:TAG, once or more."),
    Parameter(name="dockerfile", summary="The Dockerfile, from the root of the tar on."),
    Parameter(name="target", summary="The stage to build."),
    Parameter(name="buildargs", summary="Build arguments: a JSON object of strings."),
    Parameter(name="labels", summary="Labels: a JSON object of strings."),
    Parameter(name="nocache", kind="boolean", summary="Build every step."),
    Parameter(name="pull", kind="boolean", summary="Ask for the newest base images."),
    Parameter(name="platform", summary="Such as linux/amd64, or several of them with commas."),
    Parameter(name="networkmode", summary="`default` or `none`."),
    Parameter(name="if_nobody", summary="`here`, `wait` or `fail`."),
    Parameter(name="on_close", summary="What closing the connection means: `detach` or `cancel`."),
    Parameter(name=KEY_HEADER, place="header", summary="The same key is the same build."),
)
# fmt: on
_NAMES: Final = frozenset(one.name for one in PARAMETERS if one.place == "query")
_TRUE: Final = frozenset({"1", "true", "True"})
# Replaced before anything looks at it: the context is what the body becomes.
_TO_COME: Final = ContextRef(digest="sha256:" + "0" * 64, size_bytes=0, unpacked_bytes=0, files=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHandlers:
    """The one call."""

    authenticate: Authenticate
    runs: Runs
    submissions: Submissions
    events: Events
    cancelling: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def run(self, request: Request) -> Response:
        """`POST /api/builds:run`."""
        principal = await self.authenticate(request)
        wanted, cancels = _wanted(request), _cancels(request)
        build = await self.runs.start(principal, wanted, request.stream())
        lines = self._lines(request, principal, build.id, cancels=cancels)
        headers = {
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "Location": f"/api/builds/{build.id}",
        }
        return StreamingResponse(lines, headers=headers, media_type=JSON_LINES)

    async def _lines(
        self, request: Request, principal: Principal, build_id: str, *, cancels: bool
    ) -> AsyncGenerator[bytes, None]:
        events = self.events.stream(build_id, Cursor())
        gone = asyncio.ensure_future(_gone(request))
        ended = False
        try:
            async for event in _until(gone, events):
                ended = isinstance(event, Finished)
                yield to_wire(event) + b"\n" if event is not None else b"\n"
        finally:
            gone.cancel()
            if cancels and not ended:
                work = asyncio.ensure_future(self._cancel(principal, build_id))
                self.cancelling.add(work)
                work.add_done_callback(self.cancelling.discard)

    async def _cancel(self, principal: Principal, build_id: str) -> None:
        with suppress(Refused, PierheadError):  # it may have ended in the meantime
            wish = CancelRequest(reason="the connection was closed")
            await self.submissions.cancel(principal, build_id, wish)


async def _gone(request: Request) -> None:
    """Return when the caller closed the connection; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _until(
    gone: "asyncio.Future[None]", events: AsyncIterator[Event]
) -> AsyncGenerator[Event | None, None]:
    """Yield events until the last one or until the caller is gone; none: there was none lately."""
    following: asyncio.Future[Event | None] | None = None
    try:
        while not gone.done():
            following = following or asyncio.ensure_future(anext(events, None))
            both: list[asyncio.Future[Any]] = [following, gone]
            await asyncio.wait(both, timeout=SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                yield None
                continue
            event, following = following.result(), None
            if event is None:
                return
            yield event
    finally:
        if following is not None:
            following.cancel()


def _wanted(request: Request) -> Submit:
    """Return what is to be submitted, but for its context."""
    query = request.query_params
    unknown = sorted({*query} - _NAMES)
    if unknown:
        detail = f"{', '.join(unknown)[:200]} is not honoured"
        raise InvalidRequest(detail, hint=f"what is: {', '.join(sorted(_NAMES))}")
    names = [parse_tag(text) for text in query.getlist("t")]
    project = query.get("project") or (names[0].project if names else "")
    if not project or any(name.project != project for name in names):
        raise InvalidRequest("whose build is it?", hint="add ?project=NAME, the NAME of every t")
    plan = {
        "dockerfile": query.get("dockerfile") or "Dockerfile",
        "target": query.get("target") or None,
        "build_args": _object(query.get("buildargs"), "buildargs"),
        "labels": _object(query.get("labels"), "labels"),
        "no_cache": query.get("nocache") in _TRUE,
        "pull": query.get("pull") in _TRUE,
        "network": query.get("networkmode") or "default",
    }
    return from_wire(
        Submit,
        msgspec.json.encode(
            {
                "project": project,
                "environment": query.get("environment") or "production",
                "plan": plan,
                "platforms": [one for one in query.get("platform", "").split(",") if one],
                "context": _TO_COME,
                "key": request.headers.get(KEY_HEADER),
                "tags": [name.tag for name in names],
                "if_nobody": query.get("if_nobody") or get_args(IfNobody)[0],
            }
        ),
    )


def _object(text: str | None, name: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError) as error:
        hint = f'write it like {name}={{"NAME":"VALUE"}}, percent-encoded'
        raise InvalidRequest(f"{name} is no JSON object of strings", hint=hint) from error


def _cancels(request: Request) -> bool:
    said = request.query_params.get("on_close", "detach")
    if said not in {"detach", "cancel"}:
        raise InvalidRequest("on_close is detach or cancel", hint="add &on_close=cancel")
    return said == "cancel"
