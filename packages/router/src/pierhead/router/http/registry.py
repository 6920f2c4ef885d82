"""`/v2/`: the distribution API (opencontainers/distribution-spec 1.1), and Docker's token call."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pierhead.protocol.digest import parse_digest
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.ids import PROJECT_PATTERN, TAG_PATTERN
from pierhead.protocol.problem import PROBLEM_TYPES
from pierhead.protocol.version import OFFSET_HEADER
from pierhead.router.domain.errors import (
    InvalidRequest,
    NotAllowed,
    NotFound,
    Refused,
)
from pierhead.router.domain.manifest import (
    MANIFEST_BYTES_MAX,
    OCI_INDEX,
    ManifestInvalid,
    SizeWrong,
)
from pierhead.router.domain.passes import (
    LIFETIME,
    PASS_PREFIX,
    Needed,
    Scopes,
    covers,
    needed,
    require,
    scopes_of,
)
from pierhead.router.domain.token import Principal, Runner
from pierhead.router.http.mirror import DIGEST_HEADER as _DIGEST_HEADER
from pierhead.router.http.mirror import MirrorHandlers
from pierhead.router.http.requests import Authenticate, number, token_of
from pierhead.router.services.passes import Passes
from pierhead.router.services.registry import BlobUnknown, Registry
from pierhead.server.files import FileBody
from pierhead.server.problems import read_body, retry_after

_NAME: Final = re.compile(PROJECT_PATTERN)
_TAG: Final = re.compile(TAG_PATTERN)
_RANGE: Final = re.compile(r"(?:bytes[= ])?(\d{1,15})-(\d{1,15})\Z")
_PAGE_MAX: Final = 10_000
_BLOB: Final = "application/octet-stream"
_FORM_BYTES_MAX: Final = 16 * 1024
# distribution-spec, "Error Codes".
_CODES: Final = {
    "unauthenticated": "UNAUTHORIZED",
    "token-expired": "UNAUTHORIZED",
    "token-spent": "UNAUTHORIZED",
    "invalid-document": "UNSUPPORTED",
    "method-not-allowed": "UNSUPPORTED",
    "not-allowed": "DENIED",
    "not-found": "NAME_UNKNOWN",
    "digest-mismatch": "DIGEST_INVALID",
    "offset-mismatch": "BLOB_UPLOAD_INVALID",
    "too-large": "SIZE_INVALID",
    "upstream-refused": "DENIED",
    "dependency-unavailable": "UNAVAILABLE",
    "rate-limited": "TOOMANYREQUESTS",
}
_UNKNOWN: Final = (
    ("/blobs/uploads/", "BLOB_UPLOAD_UNKNOWN"),
    ("/blobs/", "BLOB_UNKNOWN"),
    ("/manifests/", "MANIFEST_UNKNOWN"),
)
# The distribution-spec has statuses of its own for these.
_STATUS: Final = {"offset-mismatch": 416, "digest-mismatch": 400, "upstream-refused": 403}
_DETAILS: Final = ("next_offset", "retry_after_ms", "hint")  # of a problem, besides its text
Endpoint = Callable[["RegistryHandlers", Request, Principal, str, str], Awaitable[Response]]


class DigestInvalid(InvalidRequest):
    """What was sent for a digest is not one."""


class SizeInvalid(InvalidRequest):
    """A part is not as long as it was said to be."""


class MethodNotAllowed(Refused):
    """The path exists and does not take the method."""

    slug = "method-not-allowed"


_REFUSALS: Final[tuple[tuple[type[Refused], str], ...]] = (
    (BlobUnknown, "MANIFEST_BLOB_UNKNOWN"),
    (SizeWrong, "SIZE_INVALID"),
    (ManifestInvalid, "MANIFEST_INVALID"),
    (DigestInvalid, "DIGEST_INVALID"),
    (SizeInvalid, "SIZE_INVALID"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryHandlers:
    """One method for each endpoint. `realm`: the public URL of the token endpoint."""

    authenticate: Authenticate
    registry: Registry
    passes: Passes
    mirror: MirrorHandlers
    realm: str

    async def token(self, request: Request) -> Response:
        """`GET /v2/token`: whoever has one of our tokens as a password gets a pass for a while.

        It is good for the scopes that are asked for, as far as the password is; with none it is no
        more than a login.
        """
        try:
            asked = request.query_params.getlist("scope")
            return _token_answer({"token": await self._pass(request, token_of(request), asked)})
        except Refused as error:
            return self._refusal(request, error)

    async def token_by_form(self, request: Request) -> Response:
        """`POST /v2/token`: the same, as OAuth 2 clients ask for it (docker, containerd)."""
        try:
            said = parse_qs((await read_body(request, _FORM_BYTES_MAX)).decode("ascii", "replace"))
            grant = said.get("grant_type", ["password"])[0]
            found = said.get("refresh_token" if grant == "refresh_token" else "password", [""])[0]
            given = await self._pass(_with_token(request, found), found, said.get("scope", []))
            answer = {"access_token": given, "token_type": "Bearer"}
            if grant == "refresh_token" or said.get("access_type") == ["offline"]:
                answer["refresh_token"] = found
            return _token_answer(answer)
        except Refused as error:
            return self._refusal(request, error)
        except PierheadError as error:
            return self._error(request, error.problem.slug, str(error))

    async def _pass(self, request: Request, credential: str, asked: Sequence[str]) -> str:
        _require_no_runner(await self.authenticate(request))
        return self.passes.give(credential, asked)

    async def _who(self, request: Request) -> tuple[Principal, Scopes | None]:
        """Return who asks and, of a pass, what it is good for."""
        token = token_of(request)
        if not token.startswith(PASS_PREFIX):
            return _require_no_runner(await self.authenticate(request)), None
        credential, scopes = self.passes.open(token)
        return await self.authenticate(_with_token(request, credential)), scopes

    async def dispatch(self, request: Request) -> Response:
        """Everything below `/v2/`: repository names have slashes, so the path is taken apart."""
        try:
            principal, scopes = await self._who(request)
            require(scopes, needed(request.method, request.path_params["path"]))
            request.state.scopes = scopes
            elsewhere = self.mirror.elsewhere(request)
            if elsewhere is not None and scopes is not None:
                raise NotAllowed("what the token call gave is for this registry alone")
            if elsewhere is not None:
                return await self.mirror.answer(request, principal, elsewhere)
            endpoint, name, rest = _route(request.method, request.path_params["path"])
            return await endpoint(self, request, principal, name, rest)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it; what arrived is kept
        except Refused as error:
            return self._refusal(request, error)
        except PierheadError as error:
            found = error.problem
            said = {name: getattr(found, name) for name in _DETAILS}
            told = {name: value for name, value in said.items() if value is not None}
            return self._error(request, found.slug, str(error), **told)

    def _refusal(self, request: Request, error: Refused) -> Response:
        code = next((code for kind, code in _REFUSALS if isinstance(error, kind)), None)
        hint = {"hint": error.hint} if error.hint else {}
        return self._error(request, error.slug, str(error), code=code, **error.members, **hint)

    def _error(
        self, request: Request, slug: str, text: str, *, code: str | None = None, **detail: object
    ) -> Response:
        path, headers = request.url.path, {}
        status = _STATUS.get(slug, PROBLEM_TYPES[slug].status)
        if slug == "not-found":
            code = code or next((code for part, code in _UNKNOWN if part in path), None)
        code = code or _CODES.get(slug, "UNKNOWN")
        if status == 401:
            headers["WWW-Authenticate"] = (
                f'Bearer realm="{self.realm}",service="pierhead"{_scope_of(request)}'
            )
        if status == 416:
            headers = {"Location": path, "Range": _range(int(str(detail["next_offset"])))}
        if status in {429, 503}:
            headers["Retry-After"] = retry_after(int(str(detail.get("retry_after_ms", 1000))))
        errors = {"errors": [{"code": code, "message": text, "detail": detail}]}
        return Response(json.dumps(errors), status, headers, "application/json")

    # Blobs.

    async def ping(self, _request: Request, _who: Principal, _name: str, _rest: str) -> Response:
        """`GET /v2/`."""
        headers = {"Docker-Distribution-Api-Version": "registry/2.0"}
        return Response("{}", media_type="application/json", headers=headers)

    async def blob(self, _request: Request, who: Principal, name: str, digest: str) -> Response:
        """`HEAD` and `GET /v2/NAME/blobs/DIGEST`, with Range."""
        await self.registry.blob_size(who, name, _digest(digest))
        path, headers = self.registry.blobs.path(digest), {_DIGEST_HEADER: digest}
        try:
            return FileBody(path, media_type=_BLOB, etag=digest, headers=headers)
        except FileNotFoundError as error:  # it was just given up
            raise NotFound(f"{name} has no blob {digest}") from error

    async def begin(self, request: Request, who: Principal, name: str, _rest: str) -> Response:
        """`POST /v2/NAME/blobs/uploads/`: begin, mount, or upload whole."""
        query = request.query_params
        if "mount" in query:
            digest, source = _digest(query["mount"]), query.get("from", "")
            able = _may_mount_from(request, source)
            if able and await self.registry.mount(who, name, digest, source):
                return _created(f"/v2/{name}/blobs/{digest}", digest)
        if "digest" in query:
            _digest(query["digest"])  # before anything is begun
        upload_id = await self.registry.begin(who, name)
        if "digest" in query:
            return await self._at_once(request, who, name, upload_id)
        return _progress(name, upload_id, 0, 202)

    async def _at_once(self, request: Request, who: Principal, name: str, upload: str) -> Response:
        """Upload whole with the request that begins it, or leave nothing of it.

        Whoever is cut never hears of the upload, so nobody could go on with it.
        """
        try:
            return await self.finish(request, who, name, upload)
        except BaseException:
            await self.registry.cancel_upload(who, name, upload)
            raise

    async def append(self, request: Request, who: Principal, name: str, upload: str) -> Response:
        """`PATCH /v2/NAME/blobs/uploads/ID`, with or without Content-Range."""
        size = await self._append(request, who, name, upload)
        return _progress(name, upload, size, 202)

    async def finish(self, request: Request, who: Principal, name: str, upload: str) -> Response:
        """`PUT /v2/NAME/blobs/uploads/ID?digest=`, with the last bytes or none."""
        digest = _digest(request.query_params.get("digest", ""))
        await self._append(request, who, name, upload)
        await self.registry.commit(who, name, upload, digest)
        return _created(f"/v2/{name}/blobs/{digest}", digest)

    async def _append(self, request: Request, who: Principal, name: str, upload: str) -> int:
        said = request.headers.get("content-range")
        if not said:
            return await self.registry.append(who, name, upload, request.stream())
        first, size = _content_range(said)
        length = request.headers.get("content-length", str(size))
        if length != str(size):
            raise SizeInvalid(f"Content-Range {said[:40]} is not a body of {length[:20]} bytes")
        return await self.registry.append(who, name, upload, _exactly(request, size), first)

    async def progress(self, _request: Request, who: Principal, name: str, upload: str) -> Response:
        """`GET /v2/NAME/blobs/uploads/ID`: where to go on."""
        size = await self.registry.upload_size(who, name, upload)
        return _progress(name, upload, size, 204)

    async def drop(self, _request: Request, who: Principal, name: str, upload: str) -> Response:
        """`DELETE /v2/NAME/blobs/uploads/ID`."""
        await self.registry.cancel_upload(who, name, upload)
        return Response(status_code=204)

    # Manifests.

    async def manifest(self, request: Request, who: Principal, name: str, wanted: str) -> Response:
        """`HEAD` and `GET /v2/NAME/manifests/REFERENCE`."""
        found = await self.registry.manifest(who, name, wanted)
        headers = {_DIGEST_HEADER: found.digest, "ETag": f'"{found.digest}"'}
        headers["Content-Length"] = str(len(found.body))
        body = b"" if request.method == "HEAD" else found.body
        return Response(body, media_type=found.media_type, headers=headers)

    async def push_manifest(
        self, request: Request, who: Principal, name: str, wanted: str
    ) -> Response:
        """`PUT /v2/NAME/manifests/REFERENCE`."""
        if not wanted.startswith("sha256:") and not _TAG.match(wanted):
            raise InvalidRequest(f"{wanted[:140]!r} is not a tag")
        body = await read_body(request, MANIFEST_BYTES_MAX)
        kind = request.headers.get("content-type", "")
        kept = await self.registry.push_manifest(who, name, wanted, kind, body)
        answer = _created(f"/v2/{name}/manifests/{kept.digest}", kept.digest)
        if kept.subject is not None:
            # It says that the client need not keep a list of referrers under a tag by itself.
            answer.headers["OCI-Subject"] = kept.subject
        return answer

    async def drop_manifest(
        self, _request: Request, who: Principal, name: str, wanted: str
    ) -> Response:
        """`DELETE /v2/NAME/manifests/REFERENCE`."""
        await self.registry.delete_manifest(who, name, wanted)
        return Response(status_code=202)

    async def drop_blob(
        self, _request: Request, who: Principal, name: str, digest: str
    ) -> Response:
        """`DELETE /v2/NAME/blobs/DIGEST`."""
        await self.registry.delete_blob(who, name, _digest(digest))
        return Response(status_code=202)

    # Lists.

    async def tags(self, request: Request, who: Principal, name: str, _rest: str) -> Response:
        """`GET /v2/NAME/tags/list`, with n and last."""
        limit, last = _page(request)
        found = await self.registry.tags(who, name, last, limit + 1)
        return _listed(f"/v2/{name}/tags/list", {"name": name, "tags": found[:limit]}, found, limit)

    async def catalog(self, request: Request, who: Principal, _name: str, _rest: str) -> Response:
        """`GET /v2/_catalog`, with n and last: what the token may know of."""
        limit, last = _page(request)
        found = await self.registry.repositories(who, last, limit + 1)
        return _listed("/v2/_catalog", {"repositories": found[:limit]}, found, limit)

    async def referrers(
        self, request: Request, who: Principal, name: str, subject: str
    ) -> Response:
        """`GET /v2/NAME/referrers/DIGEST`, with artifactType."""
        query = request.query_params
        kind, after = query.get("artifactType"), query.get("last", "")
        found, following = await self.registry.referrers(who, name, _digest(subject), kind, after)
        headers = {"OCI-Filters-Applied": "artifactType"} if kind is not None else {}
        if following is not None:
            filtered = f"&artifactType={quote(kind, safe='')}" if kind is not None else ""
            path = f"/v2/{name}/referrers/{subject}?last={following}{filtered}"
            headers["Link"] = f'<{path}>; rel="next"'
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": found}
        return Response(json.dumps(index), media_type=OCI_INDEX, headers=headers)


_ENDPOINTS: Final[tuple[tuple[re.Pattern[str], dict[str, Endpoint]], ...]] = (
    (re.compile(r"(?P<name>)(?P<rest>)\Z"), {"GET": RegistryHandlers.ping}),
    (re.compile(r"(?P<name>)_catalog(?P<rest>)\Z"), {"GET": RegistryHandlers.catalog}),
    (
        re.compile(r"(?P<name>.+)/blobs/uploads/?(?P<rest>)\Z"),
        {"POST": RegistryHandlers.begin},
    ),
    (
        re.compile(r"(?P<name>.+)/blobs/uploads/(?P<rest>[^/]+)\Z"),
        {
            "PATCH": RegistryHandlers.append,
            "PUT": RegistryHandlers.finish,
            "GET": RegistryHandlers.progress,
            "DELETE": RegistryHandlers.drop,
        },
    ),
    (
        re.compile(r"(?P<name>.+)/blobs/(?P<rest>[^/]+)\Z"),
        {
            "GET": RegistryHandlers.blob,
            "HEAD": RegistryHandlers.blob,
            "DELETE": RegistryHandlers.drop_blob,
        },
    ),
    (
        re.compile(r"(?P<name>.+)/manifests/(?P<rest>[^/]+)\Z"),
        {
            "GET": RegistryHandlers.manifest,
            "HEAD": RegistryHandlers.manifest,
            "PUT": RegistryHandlers.push_manifest,
            "DELETE": RegistryHandlers.drop_manifest,
        },
    ),
    (re.compile(r"(?P<name>.+)/tags/list(?P<rest>)\Z"), {"GET": RegistryHandlers.tags}),
    (
        re.compile(r"(?P<name>.+)/referrers/(?P<rest>[^/]+)\Z"),
        {"GET": RegistryHandlers.referrers},
    ),
)


def _route(method: str, path: str) -> tuple[Endpoint, str, str]:
    """Return the endpoint for a path below `/v2/`, the repository, and what follows it."""
    for pattern, endpoints in _ENDPOINTS:
        found = pattern.match(path)
        if found is None:
            continue
        name = found["name"]
        if name and (len(name) > 128 or not _NAME.match(name)):
            raise NotFound(f"{name[:140]!r} is not the name of a repository")
        if method not in endpoints:
            raise MethodNotAllowed(f"{method} is not for /v2/{path[:140]}")
        return endpoints[method], name, found["rest"]
    raise NotFound(f"there is nothing at /v2/{path[:140]}")


def _token_answer(found: dict[str, str]) -> Response:
    body = json.dumps({**found, "expires_in": int(LIFETIME.total_seconds())})
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


def _with_token(request: Request, token: str) -> Request:
    """Return a request that carries a token, instead of what it came with."""
    others = [pair for pair in request.scope["headers"] if pair[0] != b"authorization"]
    bearer = (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))
    return Request({**request.scope, "headers": [*others, bearer]})


def _scope_of(request: Request) -> str:
    """Return what a challenge says that a token has to be good for."""
    wanted = needed(request.method, request.url.path.removeprefix("/v2/"))
    said = wanted.scope if wanted else ""
    return f',scope="{said}"' if scopes_of([said]) else ""


def _may_mount_from(request: Request, source: str) -> bool:
    """Say whether the pass, if it is one, is good for reading there."""
    scopes: Scopes | None = request.state.scopes
    return scopes is None or covers(scopes, Needed(f"repository:{source}", "pull"))


def _require_no_runner(principal: Principal) -> Principal:
    if isinstance(principal, Runner):
        raise NotAllowed("a runner's credential opens nothing in the registry")
    return principal


def _digest(text: str) -> str:
    try:
        return parse_digest(text)
    except ValueError as error:
        raise DigestInvalid(str(error)) from error


def _created(location: str, digest: str) -> Response:
    return Response(status_code=201, headers={"Location": location, _DIGEST_HEADER: digest})


def _progress(name: str, upload_id: str, size: int, status: int) -> Response:
    headers = {
        "Location": f"/v2/{name}/blobs/uploads/{upload_id}",
        "Docker-Upload-UUID": upload_id,
        "Range": _range(size),
        OFFSET_HEADER: str(size),  # exact, where Range cannot say "nothing"
    }
    return Response(status_code=status, headers=headers)


def _content_range(said: str) -> tuple[int, int]:
    """Return where a part begins, and its size."""
    found = _RANGE.match(said)
    first, last = (int(found[1]), int(found[2])) if found else (1, 0)
    if last < first:
        raise InvalidRequest("Content-Range is FIRST-LAST, in bytes")
    return first, last - first + 1


async def _exactly(request: Request, size: int) -> AsyncIterator[bytes]:
    """Yield the body, and refuse one that is longer or shorter; what came in time is kept."""
    rest = size
    async for chunk in request.stream():
        if len(chunk) > rest:
            yield chunk[:rest]
            raise SizeInvalid(f"the body is longer than the {size} bytes of Content-Range")
        rest -= len(chunk)
        yield chunk
    if rest:
        raise SizeInvalid(f"the body is {rest} bytes shorter than Content-Range")


def _page(request: Request) -> tuple[int, str]:
    query = request.query_params
    return min(number(query.get("n", str(_PAGE_MAX)), "n"), _PAGE_MAX), query.get("last", "")


def _listed(path: str, body: dict[str, object], found: Sequence[str], limit: int) -> Response:
    """Return a page, with the address of the next one if there is more."""
    headers = {}
    if len(found) > limit > 0:
        headers["Link"] = f'<{path}?n={limit}&last={quote(found[limit - 1])}>; rel="next"'
    return Response(json.dumps(body), media_type="application/json", headers=headers)


def _range(size: int) -> str:
    """Return what arrived so far. The spec has no way to say "nothing": `0-0` is what all say."""
    return f"0-{max(size - 1, 0)}"
