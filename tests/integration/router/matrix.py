"""The token matrix: who holds what, what each may call, and a scene in which to try it.

`TABLE` has a row for each route, `REGISTRY` one for each endpoint below `/v2/`. A row says for
every holder what comes back: a status when the call is let through, otherwise the status and the
name of the problem. What is not said in a row is the refusal of one who has no business there.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import httpx
import msgspec

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.digest import digest_of
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.lease import Acquire, Held, Release
from pierhead.protocol.meta import PullTokenRequest
from pierhead.protocol.plan import ContextRef
from pierhead.protocol.project import NewEnvironment, NewToken
from pierhead.protocol.result import Envelope
from pierhead.protocol.runner import AddRunner, SessionRequest
from pierhead.protocol.version import FENCE_HEADER
from pierhead.router.domain.upstream import Login
from tests.integration.router.stage import (
    MANIFEST_TYPE,
    House,
    ScriptedRunner,
    capabilities,
    push_image,
    tiny_image,
)

Outcome: TypeAlias = int | tuple[int, str]
Row: TypeAlias = dict[str, Outcome]
Rows: TypeAlias = Row | Callable[[str], Row]  # the state of the build decides, where it matters
Route: TypeAlias = tuple[str, str]

STATES: Final = ("queued", "leased", "succeeded", "failed", "cancelled")
UNKNOWN, EXPIRED = (401, "unauthenticated"), (401, "token-expired")
DENIED, UNSEEN = (403, "not-allowed"), (404, "not-found")
LOST, OVER = (409, "lease-lost"), (409, "build-finished")

# Who is nobody, whatever is asked for; and who is somebody, with what they hold.
NOBODY: Final[Row] = {
    "none": UNKNOWN,
    "garbage": UNKNOWN,
    "revoked_owner": UNKNOWN,
    "expired_owner": EXPIRED,
    "revoked": UNKNOWN,  # of the project, as the next
    "expired": EXPIRED,
    "forged": UNKNOWN,  # the attempt of the build, with another signature
    "forged_stale": UNKNOWN,  # an earlier attempt of it, with another signature
    "made_up": UNKNOWN,  # an attempt of a build that is not there
    "expired_puller": EXPIRED,
    "forged_puller": UNKNOWN,  # another project's, renamed to this one
    "join_code": UNKNOWN,
}
SOMEBODY: Final = (
    "owner",
    "second_owner",
    "writer",
    "writer_here",  # of the build's environment alone
    "writer_elsewhere",  # of another environment of the project
    "reader",
    "stranger",  # of another project, as the next
    "strange_reader",
    "runner",  # that has the build
    "other_runner",
    "here",
    "attempt",  # the latest of the build that is spoken of
    "stale",  # an earlier one
    "rival",  # of another build of the project
    "foreign",  # of a build of another project
    "spent",  # of a build of the project that has succeeded
    "of_cancelled",  # of one that was cancelled
    "puller",  # of the project's repository
)
WHO: Final = (*NOBODY, *SOMEBODY)
OWNERS: Final = ("owner", "second_owner")
WRITERS: Final = ("writer", "writer_here", "writer_elsewhere")
STRANGERS: Final = ("stranger", "strange_reader")
RUNNERS: Final = ("runner", "other_runner", "here")


def row(outcome: Outcome, *who: str, **others: Outcome) -> Row:
    """Those named get the outcome, and all the others are refused."""
    usual: Row = dict.fromkeys(SOMEBODY, DENIED)
    return {**usual, **dict.fromkeys(who, outcome), **others, **NOBODY}


def all_of(outcome: Outcome) -> Row:
    return dict.fromkeys(WHO, outcome)


def strangers(outcome: Outcome) -> Row:
    return dict.fromkeys(STRANGERS, outcome)


OWNER: Final = row(200, *OWNERS)
RUNNER: Final = row(200, *RUNNERS)
SUBMITTER: Final = row(200, *OWNERS, *WRITERS, "reader", *STRANGERS)
# Of one project: its environments see all of it, other projects nothing.
PROJECT: Final = row(200, *OWNERS, *WRITERS, "reader", **strangers(UNSEEN))
CHANGE_PROJECT: Final = row(200, *OWNERS, *WRITERS, **strangers(UNSEEN))
# Of one build: other environments do not see it either.
BUILD: Final = {**PROJECT, "writer_elsewhere": UNSEEN}
CHANGE_BUILD: Final = {**CHANGE_PROJECT, "writer_elsewhere": UNSEEN}


def attempt(state: str) -> Row:
    """What only the holder of the build may do, while it holds it."""
    if state in {"succeeded", "failed", "cancelled"}:
        return row(OVER, "attempt", "stale")
    return row(LOST, "stale", attempt=200 if state == "leased" else LOST)


def result(state: str) -> Row:
    """The same result again is answered again; it is what `Scene.body` sends."""
    final = state in {"succeeded", "failed", "cancelled"}
    return {**attempt(state), "attempt": 200} if final else attempt(state)


def cancel(state: str) -> Row:
    """Asking again is harmless; what ended otherwise cannot be cancelled any more."""
    answer: Outcome = OVER if state in {"succeeded", "failed"} else 200
    return {who: answer if said == 200 else said for who, said in CHANGE_BUILD.items()}


def run_here(state: str) -> Row:
    """Only what waits can be asked here."""
    answer: Outcome = 200 if state == "queued" else (400, "invalid-document")
    return {who: answer if said == 200 else said for who, said in CHANGE_BUILD.items()}


# Whoever may build sends no tar here, and is told so.
RUN: Final[Row] = {
    **{
        who: (400, "invalid-document") if said == 200 else said
        for who, said in CHANGE_PROJECT.items()
    },
    "writer_elsewhere": DENIED,
}

TABLE: Final[dict[Route, Rows]] = {
    ("GET", "/api/meta"): all_of(200),
    ("GET", "/api/openapi.json"): all_of(200),
    ("GET", "/join"): all_of(200),
    ("GET", "/ca.crt"): all_of(UNSEEN),  # there is none: the scene speaks plain HTTP
    ("POST", "/api/runners/enroll"): all_of(UNKNOWN),  # by a code that nobody made
    ("GET", "/api/capabilities"): SUBMITTER,
    ("POST", "/api/contexts"): CHANGE_PROJECT,
    ("POST", "/api/contexts/objects"): CHANGE_PROJECT,
    ("POST", "/api/builds"): {**CHANGE_PROJECT, "writer_elsewhere": DENIED},
    ("GET", "/api/builds"): SUBMITTER,
    ("POST", "/api/builds:run"): RUN,
    ("PUT", "/api/builds:run"): RUN,
    ("POST", "/api/builds:why"): PROJECT,
    ("GET", "/api/builds/{build_id}"): BUILD,
    ("GET", "/api/builds/{build_id}/why"): BUILD,
    ("GET", "/api/builds/{build_id}/events"): BUILD,
    ("GET", "/api/builds/{build_id}/logs"): BUILD,
    ("POST", "/api/builds/{build_id}/cancel"): cancel,
    ("POST", "/api/builds/{build_id}/rerun"): CHANGE_BUILD,
    ("POST", "/api/builds/{build_id}/run-here"): run_here,
    ("GET", "/api/projects"): SUBMITTER,
    ("GET", "/api/projects/{project:path}"): PROJECT,
    ("POST", "/api/projects"): OWNER,
    ("DELETE", "/api/projects/{project:path}"): row((409, "in-use"), *OWNERS),
    ("GET", "/api/environments"): PROJECT,
    ("POST", "/api/environments"): OWNER,
    ("DELETE", "/api/environments"): OWNER,
    ("GET", "/api/tokens/self"): SUBMITTER,
    ("GET", "/api/tokens"): OWNER,
    ("POST", "/api/tokens"): OWNER,
    ("DELETE", "/api/tokens/{token_id}"): OWNER,
    ("POST", "/api/projects/{project:path}/pull-tokens"): PROJECT,
    ("POST", "/api/runners"): OWNER,
    ("DELETE", "/api/runners/{runner}"): row(UNSEEN, *OWNERS),  # one that nobody added
    ("PUT", "/api/runners/session"): RUNNER,
    ("POST", "/api/runners/acquire"): RUNNER,
    ("POST", "/api/runners/release"): RUNNER,  # of a session that was never opened
    # There is none in the scene. From another machine: tests/integration/tls/test_rotation.py.
    ("GET", "/api/ca"): row(UNSEEN, *OWNERS),
    ("POST", "/api/ca/rotation"): row(UNSEEN, *OWNERS),
    ("DELETE", "/api/ca/rotation"): row(UNSEEN, *OWNERS),
    ("POST", "/api/ca/rotation/advance"): row(UNSEEN, *OWNERS),
    ("POST", "/api/ca/replacement"): row(UNSEEN, *OWNERS),
    ("GET", "/api/registries"): OWNER,
    ("POST", "/api/registries"): row((422, "upstream-refused"), *OWNERS),  # nobody answers there
    ("DELETE", "/api/registries"): row(UNSEEN, *OWNERS),  # one that nobody added
    ("GET", "/api/builds/{build_id}/plan"): attempt,
    ("GET", "/api/builds/{build_id}/context.tar.zst"): attempt,
    ("GET", "/api/builds/{build_id}/secrets"): attempt,
    ("POST", "/api/builds/{build_id}/heartbeat"): attempt,
    ("GET", "/api/builds/{build_id}/signals"): attempt,
    ("PATCH", "/api/builds/{build_id}/logs"): attempt,
    ("POST", "/api/builds/{build_id}/release"): attempt,
    ("POST", "/api/builds/{build_id}/result"): result,
}
# After these a build is another; each that is let through gets one of its own.
ENDING: Final = {
    ("POST", "/api/builds/{build_id}/cancel"),
    ("POST", "/api/builds/{build_id}/release"),
    ("POST", "/api/builds/{build_id}/result"),
    ("GET", "/api/builds/{build_id}/signals"),  # held, unless there is a wish
}
# What is asked of these is in the query.
QUERIES: Final[dict[Route, dict[str, str]]] = {
    ("POST", "/api/builds:run"): {"project": "web"},
    ("PUT", "/api/builds:run"): {"project": "web"},
    ("POST", "/api/contexts/objects"): {"project": "web"},
    ("DELETE", "/api/projects/{project:path}"): {"plan": "true"},
    ("GET", "/api/environments"): {"project": "web"},
    ("DELETE", "/api/environments"): {"project": "web", "name": "spare"},
    ("GET", "/api/tokens"): {"project": "web"},
    ("DELETE", "/api/registries"): {"host": "ghcr.io"},
}

# The registry. Who may not know of a repository is told that it is not there.
GONE = "MANIFEST_UNKNOWN"
PULLERS: Final = (*OWNERS, *WRITERS, "reader", "puller")
PUSHERS: Final = (*OWNERS, "writer")


def registry(outcome: Outcome, who: tuple[str, ...], live: Outcome, refusal: Outcome) -> Rows:
    """`live`: what the attempt that holds the build gets, and a rival of the same project."""

    def of(state: str) -> Row:
        usual: Row = dict.fromkeys(SOMEBODY, refusal)
        usual |= dict.fromkeys(RUNNERS, (403, "DENIED"))
        usual |= {"rival": live, "attempt": live if state == "leased" else refusal}
        nobody: Row = dict.fromkeys(NOBODY, (401, "UNAUTHORIZED"))
        return {**usual, **dict.fromkeys(who, outcome), **nobody}

    return of


def pulled(outcome: Outcome, unseen: str, live: Outcome | None = None) -> Rows:
    return registry(outcome, PULLERS, outcome if live is None else live, (404, unseen))


def pushed(outcome: Outcome, live: Outcome) -> Rows:
    return registry(outcome, PUSHERS, live, (403, "DENIED"))


def mirrored(state: str) -> Row:
    """Whoever builds gets images of other registries: here of one that does not answer."""
    usual: Row = dict.fromkeys(SOMEBODY, (403, "DENIED"))
    builds = [*OWNERS, "rival", "foreign", *(["attempt"] if state == "leased" else [])]
    nobody: Row = dict.fromkeys(NOBODY, (401, "UNAUTHORIZED"))
    return {**usual, **dict.fromkeys(builds, (503, "UNAVAILABLE")), **nobody}


def anybody(outcome: Outcome, runners: Outcome) -> Rows:
    """Whoever is somebody; what is shown depends on who it is."""
    nobody: Row = dict.fromkeys(NOBODY, (401, "UNAUTHORIZED"))
    return {**dict.fromkeys(SOMEBODY, outcome), **dict.fromkeys(RUNNERS, runners), **nobody}


NO_DIGEST: Final = digest_of(b"nobody has this")
REGISTRY: Final[dict[tuple[str, str, str], Rows]] = {
    # The endpoint, then how it is asked: each endpoint has a row, some have more.
    # Whoever has a token gets a pass: what it opens is decided where it is used.
    ("token", "GET", "token"): anybody(200, (403, "DENIED")),
    ("ping", "GET", ""): anybody(200, (403, "DENIED")),
    ("catalog", "GET", "_catalog"): anybody(200, (403, "DENIED")),
    ("begin", "POST", "web/blobs/uploads/"): pushed(202, 202),
    ("begin", "POST", "web/blobs/uploads/?mount={layer}&from=web"): pushed(201, 201),
    ("append", "PATCH", "web/blobs/uploads/{upload}"): pushed(202, (404, "BLOB_UPLOAD_UNKNOWN")),
    ("finish", "PUT", f"web/blobs/uploads/u_none?digest={NO_DIGEST}"): pushed(
        (404, "BLOB_UPLOAD_UNKNOWN"), (404, "BLOB_UPLOAD_UNKNOWN")
    ),
    ("progress", "GET", "web/blobs/uploads/{upload}"): pushed(204, (404, "BLOB_UPLOAD_UNKNOWN")),
    ("drop", "DELETE", "web/blobs/uploads/u_none"): pushed(
        (404, "BLOB_UPLOAD_UNKNOWN"), (404, "BLOB_UPLOAD_UNKNOWN")
    ),
    ("blob", "GET", "web/blobs/{layer}"): pulled(200, "BLOB_UNKNOWN"),
    ("blob", "HEAD", "web/blobs/{layer}"): pulled(200, "BLOB_UNKNOWN"),
    ("drop_blob", "DELETE", f"web/blobs/{NO_DIGEST}"): pushed(
        (404, "BLOB_UNKNOWN"), (403, "DENIED")
    ),
    ("manifest", "GET", "web/manifests/latest"): pulled(200, GONE),
    ("manifest", "GET", "web/manifests/{image}"): pulled(200, GONE),
    ("manifest", "HEAD", "web/manifests/latest"): pulled(200, GONE),
    ("manifest", "GET", "me/base/manifests/1?ns=127.0.0.1:1"): mirrored,
    ("blob", "GET", "me/base/blobs/{layer}?ns=127.0.0.1:1"): mirrored,
    ("blob", "HEAD", "me/base/blobs/{layer}?ns=127.0.0.1:1"): mirrored,
    ("push_manifest", "PUT", "web/manifests/{image}"): pushed(201, 201),
    ("push_manifest", "PUT", "web/manifests/next"): pushed(201, (403, "DENIED")),
    ("drop_manifest", "DELETE", "web/manifests/never"): pushed((404, GONE), (403, "DENIED")),
    ("drop_manifest", "DELETE", f"web/manifests/{NO_DIGEST}"): pushed((404, GONE), (403, "DENIED")),
    ("tags", "GET", "web/tags/list"): pulled(200, "NAME_UNKNOWN"),
    ("referrers", "GET", "web/referrers/{image}"): pulled(200, "NAME_UNKNOWN"),
}


def expected(rows: Rows, state: str, who: str) -> Outcome:
    """Return what has to come back."""
    return (rows(state) if callable(rows) else rows)[who]


@dataclass(kw_only=True)
class Made:
    """A build that was brought to a state, and the tokens of its two attempts."""

    build_id: str
    token: str = ""
    stale: str = ""


@dataclass(kw_only=True)
class Scene:
    """Everybody's tokens, and the things that the routes speak of, with a build in one state."""

    house: House
    state: str
    runner: ScriptedRunner
    made: Made
    tokens: dict[str, str | None]
    sessions: dict[str, str]
    context: ContextRef
    blob_upload: str
    token_id: str
    turns: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    async def ask(self, route: Route, who: str, *, let_in: bool) -> httpx.Response:
        """Call a route as it is meant to be called; `let_in`: it will do what it says."""
        method, path = route
        made, token = self.made, self.tokens[who]
        if let_in and route in ENDING:
            made = await self._like()
            token = made.token if who == "attempt" else token
            if path.endswith("/signals"):
                await self.house.owner.cancel(made.build_id, CancelRequest())
        if let_in and route == ("DELETE", "/api/environments"):
            await self.house.owner.add_environment(NewEnvironment(project="web", name="spare"))
        filled = (
            path.replace("{build_id}", made.build_id)
            .replace("{runner}", "nobody")
            .replace("{project:path}", "web")
            .replace("{token_id}", self.token_id)
        )
        fence = "1" if who in {"stale", "forged_stale"} else "2"
        headers = {FENCE_HEADER: fence}
        body, query = self.body(route, who), QUERIES.get(route)
        return await self.send(method, filled, token, body, headers, query)

    async def ask_registry(self, method: str, path: str, who: str) -> httpx.Response:
        """Call an endpoint of the registry."""
        filled = "/v2/" + (
            path.replace("{layer}", digest_of(IMAGE.layer))
            .replace("{image}", IMAGE.digest)
            .replace("{upload}", self.blob_upload)
        )
        body = IMAGE.manifest if (method, "manifests" in path) == ("PUT", True) else None
        headers = {"Content-Type": MANIFEST_TYPE} if body else {}
        return await self.send(method, filled, self.tokens[who], body, headers)

    async def send(
        self,
        method: str,
        path: str,
        token: str | None,
        body: bytes | None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request, and read no more of the answer than an endless one has."""
        said = {FENCE_HEADER: "2", "Upload-Offset": "0", **(headers or {})}
        if token is not None:
            said["Authorization"] = f"Bearer {token}"
        http = self.house.nobody
        async with http.stream(method, path, content=body, headers=said, params=query) as answered:
            if not answered.headers.get("content-type", "").startswith("text/event-stream"):
                await answered.aread()
            return answered

    def body(self, route: Route, who: str) -> bytes | None:
        """Return a document that is all right, so that the token alone decides."""
        method, path = route
        match path.removeprefix("/api/builds/{build_id}"):
            case "/result":
                return ENVELOPES[self.state]
            case "/api/runners/session":
                names = {"runner": "desktop", "other_runner": "laptop"}
                return self._session(names.get(who, who))
            case "/api/runners/acquire":
                return self._acquire(who)
            case "/api/builds" if method == "POST":
                wanted = {"key": "k", "if_nobody": "wait", "plan": {}}
                return msgspec.json.encode({"project": "web", "context": self.context, **wanted})
            case "/api/contexts":
                return msgspec.json.encode(
                    {"project": "web", "digest": self.context.digest, "pages": ""}
                )
            case "/api/contexts/objects" | "/api/builds:run":
                return b""
        if method == "GET":
            return None
        return BODIES.get(route, b"{}" if method == "POST" else b"")

    def _session(self, name: str) -> bytes:
        """Return what a runner said when it began: the same again is the same session."""
        request = SessionRequest(
            process=f"{name}-life-1",
            boot_id="boot-1",
            capabilities=capabilities(slots=SLOTS),
            public_key=self.runner.key.public,
        )
        return msgspec.json.encode(request)

    def _acquire(self, who: str) -> bytes:
        """Return a request for nothing, which gives back nothing either."""
        turn, mine = next(self.turns), Held(build_id=self.made.build_id, fence=2)
        request = Acquire(
            session_id=self.sessions.get(who, "s_none"),
            request_id=f"{who}-{turn}",
            turn=turn,
            slots=0,
            held=(mine,) if (who, self.state) == ("runner", "leased") else (),
            hold_ms=0,
        )
        return msgspec.json.encode(request)

    async def _like(self) -> Made:
        """Make another build in the state of the scene, on a runner of its own."""
        if self.state == "queued":
            return Made(build_id=(await self.house.submit(if_nobody="wait")).id)
        name = f"spare-{next(self.turns)}"
        return await bring(self.house, await self.house.runner(name, slots=SLOTS), self.state)


IMAGE: Final = tiny_image()
SLOTS: Final = 64
FAILED: Final = Envelope(outcome="failed")
# The result that a build has, or would get.
ENVELOPES: Final = {
    state: msgspec.json.encode(IMAGE.envelope() if state == "succeeded" else FAILED)
    for state in STATES
}
BODIES: Final[dict[Route, bytes]] = {
    ("POST", "/api/runners/enroll"): b'{"secret":"%s","nonce":"n"}' % (b"x" * 43),
    ("POST", "/api/builds:why"): b'{"project":"web"}',
    ("POST", "/api/builds/{build_id}/rerun"): b'{"key":"again"}',
    ("POST", "/api/builds/{build_id}/release"): b'{"reason":"draining"}',
    ("POST", "/api/projects"): b'{"name":"web"}',
    ("POST", "/api/environments"): b'{"project":"web","name":"spare"}',
    ("POST", "/api/tokens"): b'{"key":"k","name":"ci","project":"web"}',
    ("POST", "/api/runners"): b'{"name":"attic"}',
    ("POST", "/api/runners/release"): b'{"session_id":"s_none"}',
    ("POST", "/api/ca/rotation"): b"{}",
    ("POST", "/api/ca/replacement"): b'{"fingerprint":"%s"}' % (b"0" * 64),
    ("POST", "/api/registries"): b'{"host":"127.0.0.1:1"}',
}


async def bring(house: House, runner: ScriptedRunner, state: str, project: str = "web") -> Made:
    """Bring a new build, on its second attempt, to a state."""
    build = await house.submit(project, if_nobody="wait")
    first = await _granted(runner, build.id)
    await house.client(first).release(build.id, 1, Release(reason="draining"))
    second = await _granted(runner, build.id)
    mine = house.client(second)
    match state:
        case "queued":
            await mine.release(build.id, 2, Release(reason="draining"))
        case "succeeded":
            await push_image(house.http(second), project, IMAGE)
            await mine.report(build.id, 2, IMAGE.envelope())
        case "failed":
            await mine.report(build.id, 2, FAILED)
        case "cancelled":
            await house.owner.cancel(build.id, CancelRequest())
            await mine.report(build.id, 2, FAILED)
    return Made(build_id=build.id, token=second, stale=first)


async def _granted(runner: ScriptedRunner, build_id: str) -> str:
    grants = (await runner.acquire(slots=SLOTS)).grants
    return next(grant.token for grant in grants if grant.build_id == build_id)


async def set_scene(house: House, state: str) -> Scene:
    """Give everybody what they hold, and bring the build that is spoken of to a state."""
    tokens: dict[str, str | None] = {"none": None, "garbage": "pho_" + "x" * 43}
    tokens |= await _stored_tokens(house)
    runners = {
        "other_runner": await house.runner("laptop", slots=SLOTS),
        "here": await _here(house),
        "runner": await house.runner("desktop", slots=SLOTS),
    }
    rivals = {
        "rival": await bring(house, await house.runner("rival", slots=SLOTS), "leased"),
        "foreign": await bring(house, await house.runner("foreign", slots=SLOTS), "leased", "shop"),
        "spent": await bring(house, await house.runner("spent", slots=SLOTS), "succeeded"),
        "of_cancelled": await bring(
            house, await house.runner("cancelled", slots=SLOTS), "cancelled"
        ),
    }
    await _allow_nobody(house)
    await push_image(house.http(house.owner_token), "web", IMAGE, "latest")
    owner = house.http(house.owner_token)
    blob_upload = await owner.post("/v2/web/blobs/uploads/")
    joined = await house.owner.add_runner(AddRunner(name="attic"))
    # Last: where it waits, nobody may come and take it.
    made = await bring(house, runners["runner"], state)
    tokens |= {who: runner.credential for who, runner in runners.items()}
    tokens |= {who: rival.token for who, rival in rivals.items()}
    tokens |= {
        "attempt": made.token,
        "stale": made.stale,
        "forged": _with_another_signature(made.token),
        "forged_stale": _with_another_signature(made.stale),
        "made_up": made.token.replace(made.build_id, "b_22222222"),
        "join_code": parse_join_code(joined.code).secret,
    }
    spare = NewToken(key="spare", name="spare", project="web")
    return Scene(
        house=house,
        state=state,
        runner=runners["runner"],
        made=made,
        tokens=tokens,
        sessions={who: runner.session_id for who, runner in runners.items()},
        context=await house.upload("web"),
        blob_upload=blob_upload.headers["docker-upload-uuid"],
        token_id=(await house.owner.add_token(spare)).view.id,
    )


async def _stored_tokens(house: House) -> dict[str, str | None]:
    """Make the tokens that are stored, and let some of them end."""
    owner = house.owner
    web, shop = house.project_token("web"), house.project_token("shop")
    found: dict[str, str | None] = {
        "owner": house.owner_token,
        "writer": await web,
        "stranger": await shop,
        "writer_here": await house.project_token("web", environment="production"),
        "writer_elsewhere": await house.project_token("web", environment="staging"),
        "reader": await house.project_token("web", ability="read"),
        "strange_reader": await house.project_token("shop", ability="read"),
        "expired": await house.project_token("web", expires_in_seconds=60),
    }
    root: dict[str, Any] = {"name": "of a test", "ability": "root"}
    for who, seconds in (("second_owner", None), ("revoked_owner", None), ("expired_owner", 60)):
        made = await owner.add_token(NewToken(key=who, expires_in_seconds=seconds, **root))
        found[who] = made.token
        if who == "revoked_owner":
            await owner.revoke_token(made.view.id)
    made = await owner.add_token(NewToken(key="revoked", name="of a test", project="web"))
    await owner.revoke_token(made.view.id)
    brief = await owner.pull_token("web", PullTokenRequest(ttl_seconds=60))
    house.clock.advance(61)
    strange = await owner.pull_token("shop", PullTokenRequest())
    return {
        **found,
        "revoked": made.token,
        "puller": (await owner.pull_token("web", PullTokenRequest())).token,
        "expired_puller": brief.token,
        "forged_puller": strange.token.replace("_shop~", "_web~"),
    }


async def _allow_nobody(house: House) -> None:
    """Note a registry that was there when it was added, and does not answer any more."""
    gone = Login(
        id="l_gone",
        host="127.0.0.1:1",
        project="",
        username=None,
        plain_http=True,
        ca=None,
        added_at=house.clock.now(),
    )
    await house.router.runners.store.write(lambda ledger: ledger.save_login(gone, {}))


async def _here(house: House) -> ScriptedRunner:
    credential = await house.router.runners.enroll_here()
    here = ScriptedRunner(house=house, name="here", credential=credential)
    await here.start("here-life-1", slots=SLOTS)
    return here


def _with_another_signature(token: str) -> str:
    """Change the last character: of 22, it holds six bits, four of which count."""
    return token[:-2] + ("AA" if not token.endswith("AA") else "QQ")
