"""`RouterClient`: one method per endpoint. It does not retry; `retry.retrying` does.

Problems become the exceptions of `pierhead.protocol.errors`; a request without an answer becomes
`Unavailable`. Whoever holds a build token or a runner credential uses the same class.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from pierhead.protocol.authority import AuthorityView, Replace, Replaced, Rotate
from pierhead.protocol.build import (
    BuildPage,
    BuildView,
    CancelRequest,
    Event,
    Rerun,
    Why,
    WhyRequest,
)
from pierhead.protocol.client.address import check_url
from pierhead.protocol.client.failure import estranged, is_of_another_authority, unreachable
from pierhead.protocol.client.http import (
    ANSWER_BYTES_MAX,
    REFUSAL_BYTES_MAX,
    Transport,
    open_client,
    whole,
)
from pierhead.protocol.client.listener import require_listener
from pierhead.protocol.client.trust import Trust, shown_to
from pierhead.protocol.codec import to_wire
from pierhead.protocol.errors import (
    PierheadError,
    ProtocolMismatch,
    Refused,
    Unavailable,
    error_for,
)
from pierhead.protocol.lease import (
    Acquire,
    Acquired,
    Heartbeat,
    LogAccepted,
    Release,
    Renewed,
    Sealed,
    Signals,
)
from pierhead.protocol.meta import Meta, PullToken, PullTokenRequest, ServerCapabilities
from pierhead.protocol.plan import ContextOffer, ContextState, ObjectsKept, Submit
from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE, Problem, problem
from pierhead.protocol.project import (
    EnvironmentPage,
    EnvironmentView,
    NewEnvironment,
    NewProject,
    NewToken,
    ProjectPage,
    ProjectView,
    Removal,
    TokenMade,
    TokenPage,
    TokenView,
)
from pierhead.protocol.registry import NewRegistry, RegistryAdded, RegistryPage, RegistryView
from pierhead.protocol.result import Envelope, Receipt
from pierhead.protocol.runner import (
    AddRunner,
    Enroll,
    Enrolled,
    JoinCode,
    RunnerView,
    Session,
    SessionRelease,
    SessionRequest,
)
from pierhead.protocol.version import (
    AUTHORITIES_HEADER,
    FENCE_HEADER,
    OFFSET_HEADER,
    PROTOCOL_HEADER,
    SPOKEN,
    Versions,
)

T = TypeVar("T")
EVENT_DECODER: Final = msgspec.json.Decoder(Event)
ZSTD: Final = "zstd"


class RouterClient:
    """The API of a control plane, typed.

    `listener`: nothing is sent unless a process of one of these users (uid) listens there, on this
    machine; none: whoever answers is spoken to.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        ca: str | Trust | None = None,
        insecure_http: bool = False,
        transport: Transport | None = None,
        spoken: Versions = SPOKEN,
        listener: frozenset[int] | None = None,
    ) -> None:
        self._spoken = spoken
        self._trust = ca if isinstance(ca, Trust) else None
        self.base_url = check_url(base_url, insecure_http=insecure_http)
        self._listener = listener
        self._is_verified = self.base_url.startswith("https:") and transport is None
        self._http = open_client(self.base_url, token=token, ca=ca, transport=transport)
        self._http.headers[PROTOCOL_HEADER] = str(spoken.high)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    # Builds, for whoever submits them.

    async def meta(self) -> Meta:
        """Return the protocol versions of the control plane; needs no token."""
        return await self._call(Meta, "GET", "/api/meta")

    async def capabilities(self) -> ServerCapabilities:
        """Return the limits and runners of the control plane."""
        return await self._call(ServerCapabilities, "GET", "/api/capabilities")

    async def offer_context(self, offer: ContextOffer) -> ContextState:
        """Say what a context is, and hear what is missing of it. Asking again is harmless."""
        return await self._call(ContextState, "POST", "/api/contexts", offer)

    async def send_objects(self, project: str, body: bytes) -> ObjectsKept:
        """Send content, as `objects` puts it, at most 16 MiB. Sending again is harmless."""
        return await self._call(
            ObjectsKept, "POST", "/api/contexts/objects", body, params={"project": project}
        )

    async def submit(self, request: Submit) -> BuildView:
        """Submit a build. The same `key` with the same request returns the same build."""
        return await self._call(BuildView, "POST", "/api/builds", request)

    async def builds(
        self,
        *,
        project: str | None = None,
        limit: int = 50,
        after: str | None = None,
        mine: bool = False,
        children: bool = False,
    ) -> BuildPage:
        """Return builds, newest first.

        `mine`: only what was submitted with this kind of token. `children`: also each platform's
        build of those for several.
        """
        params = {
            "project": project,
            "limit": limit,
            "after": after,
            "mine": "1" if mine else None,
            "children": "1" if children else None,
        }
        return await self._call(BuildPage, "GET", "/api/builds", params=params)

    async def build(self, build_id: str) -> BuildView:
        """Return one build; an unambiguous prefix of its id, or `@` for the latest, will do."""
        return await self._call(BuildView, "GET", _build_path(build_id))

    async def why(self, build_id: str) -> Why:
        """Say which runners do not take the build, and why."""
        return await self._call(Why, "GET", _build_path(build_id, "why"))

    async def why_not(self, request: WhyRequest) -> Why:
        """Say who would take such a build; nothing is queued."""
        return await self._call(Why, "POST", "/api/builds:why", request)

    async def cancel(self, build_id: str, request: CancelRequest) -> BuildView:
        """Ask for the build to be cancelled. Asking again is harmless."""
        return await self._call(BuildView, "POST", _build_path(build_id, "cancel"), request)

    async def rerun(self, build_id: str, request: Rerun) -> BuildView:
        """Submit a build again, with the same plan and context."""
        return await self._call(BuildView, "POST", _build_path(build_id, "rerun"), request)

    async def run_here(self, build_id: str) -> BuildView:
        """Let the control plane's own machine take a build that waits."""
        return await self._call(BuildView, "POST", _build_path(build_id, "run-here"))

    async def log(self, build_id: str, *, offset: int = 0) -> bytes:
        """Return the stored log from `offset` on, at most 16 MiB of it."""
        path = _build_path(build_id, "logs")
        return await self._send("GET", path, params={"offset": offset})

    async def events(
        self, build_id: str, *, after: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a build, from the first or from a cursor on, until `Finished`.

        The stream may end before `Finished` (a proxy cut it): ask again with the last cursor.
        """
        headers = {"Accept": "text/event-stream"}
        if after:
            headers["Last-Event-ID"] = after
        async with self._stream("GET", _build_path(build_id, "events"), headers) as response:
            try:
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        yield EVENT_DECODER.decode(line[5:])
            except httpx.HTTPError as error:
                raise self._no_answer(error) from error

    async def pull_token(self, project: str, request: PullTokenRequest) -> PullToken:
        """Make a password that pulls the images of one project for a while."""
        path = f"/api/projects/{quote(project, safe='')}/pull-tokens"
        return await self._call(PullToken, "POST", path, request)

    # Images, by content.

    async def manifest(self, repository: str, digest: str) -> bytes:
        """Return a manifest of the registry, byte for byte."""
        path = f"/v2/{quote(repository)}/manifests/{quote(digest)}"
        return await self._send("GET", path)

    async def blob(self, repository: str, digest: str) -> AsyncIterator[bytes]:
        """Yield a blob of the registry. Whoever reads it has to check its digest."""
        path = f"/v2/{quote(repository)}/blobs/{quote(digest)}"
        async with self._stream("GET", path, {}) as response:
            try:
                async for data in response.aiter_bytes():
                    yield data
            except httpx.HTTPError as error:
                raise self._no_answer(error) from error

    # Owners.

    async def projects(self, *, limit: int = 50, after: str | None = None) -> ProjectPage:
        """Return a page of the projects that the token may see, by name."""
        params = {"limit": limit, "after": after}
        return await self._call(ProjectPage, "GET", "/api/projects", params=params)

    async def project(self, name: str) -> ProjectView:
        """Return one project."""
        return await self._call(ProjectView, "GET", _project_path(name))

    async def add_project(self, request: NewProject) -> ProjectView:
        """Make a project; making it again changes its settings."""
        return await self._call(ProjectView, "POST", "/api/projects", request)

    async def remove_project(self, name: str, *, plan: bool = False) -> Removal:
        """Remove a project with all that it had; `plan`: only be told what would go."""
        params = {"plan": "true" if plan else "false"}
        return await self._call(Removal, "DELETE", _project_path(name), params=params)

    async def environments(
        self, project: str, *, limit: int = 50, after: str | None = None
    ) -> EnvironmentPage:
        """Return a page of the environments of a project, by name."""
        params = {"project": project, "limit": limit, "after": after}
        return await self._call(EnvironmentPage, "GET", "/api/environments", params=params)

    async def add_environment(self, request: NewEnvironment) -> EnvironmentView:
        """Make an environment; making it again changes its settings."""
        return await self._call(EnvironmentView, "POST", "/api/environments", request)

    async def remove_environment(self, project: str, name: str) -> EnvironmentView:
        """Forget an environment, and revoke its tokens."""
        params = {"project": project, "name": name}
        return await self._call(EnvironmentView, "DELETE", "/api/environments", params=params)

    async def tokens(
        self, project: str | None = None, *, limit: int = 50, after: str | None = None
    ) -> TokenPage:
        """Return a page of the tokens of a project (none: the owner's), newest first."""
        params = {"project": project, "limit": limit, "after": after}
        return await self._call(TokenPage, "GET", "/api/tokens", params=params)

    async def own_token(self) -> TokenView:
        """Return what is known of the token that this client uses."""
        return await self._call(TokenView, "GET", "/api/tokens/self")

    async def add_token(self, request: NewToken) -> TokenMade:
        """Make a token. The same `key` with the same request shows the same token again."""
        return await self._call(TokenMade, "POST", "/api/tokens", request)

    async def revoke_token(self, token_id: str) -> TokenView:
        """End a token. Asking again is harmless."""
        return await self._call(TokenView, "DELETE", f"/api/tokens/{quote(token_id, safe='')}")

    async def add_runner(self, request: AddRunner) -> JoinCode:
        """Make a join code for a runner."""
        return await self._call(JoinCode, "POST", "/api/runners", request)

    # Runners.

    async def remove_runner(self, name: str) -> RunnerView:
        """Remove a runner; what it was building waits again."""
        return await self._call(RunnerView, "DELETE", f"/api/runners/{quote(name, safe='')}")

    async def enroll(self, request: Enroll) -> Enrolled:
        """Turn a join code into a runner's credential."""
        return await self._call(Enrolled, "POST", "/api/runners/enroll", request)

    async def open_session(self, request: SessionRequest) -> Session:
        """Begin to work as this process; all that an earlier process held is given back."""
        return await self._call(Session, "PUT", "/api/runners/session", request)

    async def acquire(self, request: Acquire) -> Acquired:
        """Ask for builds; held up to `hold_ms` when there is none."""
        return await self._call(Acquired, "POST", "/api/runners/acquire", request)

    async def release_session(self, request: SessionRelease) -> RunnerView:
        """Say that this process ends."""
        return await self._call(RunnerView, "POST", "/api/runners/release", request)

    # The certificate authority, for owners.

    async def authority(self) -> AuthorityView:
        """Return the certificate authority, and which runners know it."""
        return await self._call(AuthorityView, "GET", "/api/ca")

    async def rotate(self, request: Rotate) -> AuthorityView:
        """Announce another authority; only on the control plane's own machine, as the next."""
        return await self._call(AuthorityView, "POST", "/api/ca/rotation", request)

    async def cancel_rotation(self) -> AuthorityView:
        """Take the announcement of another authority back."""
        return await self._call(AuthorityView, "DELETE", "/api/ca/rotation")

    async def advance_rotation(self) -> AuthorityView:
        """Go on to the next phase of the change now."""
        return await self._call(AuthorityView, "POST", "/api/ca/rotation/advance")

    async def replace_authority(self, request: Replace) -> Replaced:
        """Replace the authority at once: all machines have to join again."""
        return await self._call(Replaced, "POST", "/api/ca/replacement", request)

    # Other registries.

    async def registries(self) -> RegistryPage:
        """Return the other registries that builds may use."""
        return await self._call(RegistryPage, "GET", "/api/registries")

    async def add_registry(self, request: NewRegistry) -> RegistryAdded:
        """Try a login at another registry, and keep it."""
        return await self._call(RegistryAdded, "POST", "/api/registries", request)

    async def remove_registry(self, host: str, project: str | None = None) -> RegistryView:
        """Forget a login at another registry."""
        params = {"host": host, "project": project}
        return await self._call(RegistryView, "DELETE", "/api/registries", params=params)

    # Whoever holds a build token: the lease is proven by the fence in the header.

    async def context(self, build_id: str, fence: int, *, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the packed context from `offset` on."""
        headers = {FENCE_HEADER: str(fence)}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        path = _build_path(build_id, "context.tar.zst")
        try:
            async with self._stream("GET", path, headers) as response:
                async for chunk in response.aiter_raw(1024 * 1024):
                    yield chunk
        except Refused as error:
            if error.problem.status != 416:  # nothing is behind the offset
                raise

    async def heartbeat(self, build_id: str, fence: int, beat: Heartbeat) -> Renewed:
        """Renew the lease."""
        return await self._held(Renewed, "POST", build_id, fence, "heartbeat", beat)

    async def secrets(self, build_id: str, fence: int) -> Sealed:
        """Return the build's secrets, for the session that holds it to open."""
        return await self._held(Sealed, "GET", build_id, fence, "secrets")

    async def signals(self, build_id: str, fence: int) -> Signals:
        """Wait up to 25 s for a wish: to cancel, so far."""
        return await self._held(Signals, "GET", build_id, fence, "signals")

    async def append_log(
        self, build_id: str, fence: int, offset: int, zstd_part: bytes
    ) -> LogAccepted:
        """Append to the log: zstd of at most 256 KiB of it, beginning at `offset`.

        Raises:
            Refused: `offset-mismatch`, whose problem says where to go on.
        """
        headers = {OFFSET_HEADER: str(offset), "Content-Encoding": ZSTD}
        return await self._held(
            LogAccepted, "PATCH", build_id, fence, "logs", zstd_part, headers=headers
        )

    async def release(self, build_id: str, fence: int, request: Release) -> None:
        """Give the build back to the queue."""
        await self._held(BuildView, "POST", build_id, fence, "release", request)

    async def report(self, build_id: str, fence: int, envelope: Envelope) -> Receipt:
        """Hand in the result, once; the same again gets the same receipt."""
        return await self._held(Receipt, "POST", build_id, fence, "result", envelope)

    # The wire.

    async def _held(
        self,
        kind: type[T],
        method: str,
        build_id: str,
        fence: int,
        what: str,
        body: msgspec.Struct | bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> T:
        headers = {FENCE_HEADER: str(fence), **(headers or {})}
        return await self._call(kind, method, _build_path(build_id, what), body, headers=headers)

    async def _call(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: msgspec.Struct | bytes | None = None,
        *,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> T:
        content = await self._send(method, path, body, params=params, headers=headers)
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            detail = f"{self.base_url}{path} did not answer as a control plane does: {error}"
            raise Unavailable(problem("dependency-unavailable", detail)) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | bytes | None = None,
        *,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        content = to_wire(body) if isinstance(body, msgspec.Struct) else body
        kind = (
            "application/json" if isinstance(body, msgspec.Struct) else "application/octet-stream"
        )
        known = {key: value for key, value in (params or {}).items() if value is not None}
        request = self._http.build_request(
            method,
            path,
            content=content,
            params=known,
            headers={"Content-Type": kind, **(headers or {})},
        )
        response = await self._answer(request)
        try:
            return await whole(response, ANSWER_BYTES_MAX)
        except httpx.HTTPError as error:
            raise self._no_answer(error) from error

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, headers: dict[str, str]
    ) -> AsyncIterator[httpx.Response]:
        response = await self._answer(self._http.build_request(method, path, headers=headers))
        try:
            yield response
        except httpx.HTTPError as error:
            raise self._no_answer(error) from error
        finally:
            await response.aclose()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        """Send a request, in an older version of the protocol when the other side has no newer.

        Return the answer with its body still to be read.
        """
        try:
            return await self._sent(request)
        except ProtocolMismatch as error:
            version = self._common_version(error.problem)
            if version is None or request.headers[PROTOCOL_HEADER] == str(version):
                raise
            self._http.headers[PROTOCOL_HEADER] = request.headers[PROTOCOL_HEADER] = str(version)
            return await self._sent(request)

    async def _sent(self, request: httpx.Request) -> httpx.Response:
        if self._listener is not None:
            require_listener(self.base_url, self._listener)
        try:
            response = await self._http.send(request, stream=True)
            content = b"" if response.is_success else await whole(response, REFUSAL_BYTES_MAX)
        except httpx.HTTPError as error:
            raise self._no_answer(error) from error
        if response.is_success:
            await self._hear(response.headers.get(AUTHORITIES_HEADER, ""))
            return response
        raise error_from(response.status_code, response.headers, content)

    def _no_answer(self, error: httpx.HTTPError) -> Unavailable:
        known = self._trust
        if known is not None and known.pins and is_of_another_authority(error):
            return estranged(self.base_url, known.pins[0], known.again)
        return unreachable(self.base_url, error)

    async def _hear(self, said: str) -> None:
        """Learn the control plane's other authority, from a connection that was verified by one.

        Whatever goes wrong with it, the call went well; the next answer says it again.
        """
        if self._trust is None or not self._is_verified or not self._trust.lacks(said):
            return
        with contextlib.suppress(httpx.HTTPError, PierheadError, OSError, ValueError):
            shown = await shown_to(self._http)
            if self._trust.lacks(said):  # nobody else was quicker
                self._trust.learn(shown, said)

    def _common_version(self, found: Problem) -> int | None:
        if found.low is None or found.high is None:
            return None
        return self._spoken.common(Versions(low=found.low, high=found.high))


def error_from(status: int, headers: httpx.Headers, content: bytes) -> PierheadError:
    """Return the exception for an answer that is not a success, whoever sent it."""
    if headers.get("content-type", "").startswith(PROBLEM_MEDIA_TYPE):
        try:
            return error_for(msgspec.json.decode(content, type=Problem))
        except msgspec.MsgspecError:
            pass
    # A proxy or another server answered, not a control plane.
    slug = "not-found" if status == 404 else "dependency-unavailable"
    text = content[:200].decode("utf-8", "replace").strip()
    found = problem(slug, f"HTTP {status} from something that is not a control plane: {text}")
    return error_for(msgspec.structs.replace(found, status=status))


def _build_path(build_id: str, what: str = "") -> str:
    path = f"/api/builds/{quote(build_id, safe='@')}"
    return f"{path}/{what}" if what else path


def _project_path(name: str) -> str:
    return f"/api/projects/{quote(name, safe='')}"
