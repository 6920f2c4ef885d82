"""Every route with every kind of token: who is let in, and how the others are refused.

The table below is compared with the route table itself, so a route without an entry fails here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import httpx
import pytest
from starlette.routing import Route

from pierhead.protocol.errors import LeaseLost
from pierhead.protocol.lease import Heartbeat, Release
from pierhead.protocol.meta import PullTokenRequest
from pierhead.protocol.version import FENCE_HEADER
from tests.integration.router.stage import House, ScriptedRunner, push_image, tiny_image

IN = "in"  # whatever follows, it is not the token that is refused
NO_TOKEN, DENIED, UNSEEN, LOST = 401, 403, 404, 409

WHO = (
    "none",
    "garbage",
    "owner",
    "own-project",
    "other-project",
    "runner",
    "attempt",  # that holds the build spoken of
    "attempt-of-other-build",
    "stale-fence",  # an earlier attempt of the build
    "forged",  # an existing build and fence, with another signature
    "spent",  # its build has its result
    "puller",  # of the project's repository
    "expired-puller",
    "forged-puller",  # another project's, signed for this one's
)
Expected: TypeAlias = int | str
NOBODY: dict[str, Expected] = dict.fromkeys(
    ("none", "garbage", "forged", "expired-puller", "forged-puller"), NO_TOKEN
)


def row(**who: Expected) -> dict[str, Expected]:
    """Everybody is refused as one without a right, except those named."""
    usual: dict[str, Expected] = dict.fromkeys(WHO, DENIED)
    return {**usual, **NOBODY, **{name.replace("_", "-"): right for name, right in who.items()}}


EVERYBODY: dict[str, Expected] = dict.fromkeys(WHO, IN)
OWNER = row(owner=IN)
SUBMITTER = row(owner=IN, own_project=IN, other_project=UNSEEN)
ANY_PROJECT = row(owner=IN, own_project=IN, other_project=IN)
RUNNER = row(runner=IN)
ATTEMPT = row(attempt=IN, stale_fence=LOST)
REGISTRY = row(
    owner=IN,
    own_project=IN,
    attempt=IN,
    attempt_of_other_build=UNSEEN,
    other_project=UNSEEN,
    stale_fence=UNSEEN,
    spent=UNSEEN,
    puller=IN,
)

TABLE: dict[tuple[str, str], dict[str, Expected]] = {
    ("GET", "/api/meta"): EVERYBODY,
    ("GET", "/api/openapi.json"): EVERYBODY,
    ("GET", "/join"): EVERYBODY,
    ("GET", "/ca.crt"): EVERYBODY,
    ("POST", "/api/runners/enroll"): EVERYBODY,
    ("GET", "/api/capabilities"): ANY_PROJECT,
    ("POST", "/api/builds:run"): SUBMITTER,
    ("PUT", "/api/builds:run"): SUBMITTER,
    ("POST", "/api/contexts"): SUBMITTER,
    ("POST", "/api/contexts/objects"): SUBMITTER,
    ("POST", "/api/builds"): SUBMITTER,
    ("GET", "/api/builds"): ANY_PROJECT,
    ("POST", "/api/builds:why"): SUBMITTER,
    ("GET", "/api/builds/{build_id}"): SUBMITTER,
    ("GET", "/api/builds/{build_id}/why"): SUBMITTER,
    ("GET", "/api/builds/{build_id}/events"): SUBMITTER,
    ("GET", "/api/builds/{build_id}/logs"): SUBMITTER,
    ("POST", "/api/builds/{build_id}/cancel"): SUBMITTER,
    ("POST", "/api/builds/{build_id}/rerun"): SUBMITTER,
    ("POST", "/api/builds/{build_id}/run-here"): SUBMITTER,
    ("GET", "/api/projects"): ANY_PROJECT,
    ("POST", "/api/projects"): OWNER,
    ("POST", "/api/projects/{project:path}/pull-tokens"): SUBMITTER,
    ("GET", "/api/projects/{project:path}"): SUBMITTER,
    ("DELETE", "/api/projects/{project:path}"): OWNER,
    ("GET", "/api/environments"): SUBMITTER,
    ("POST", "/api/environments"): OWNER,
    ("DELETE", "/api/environments"): OWNER,
    ("GET", "/api/tokens/self"): ANY_PROJECT,
    ("GET", "/api/tokens"): OWNER,
    ("POST", "/api/tokens"): OWNER,
    ("DELETE", "/api/tokens/{token_id}"): OWNER,
    ("DELETE", "/api/runners/{runner}"): OWNER,
    ("POST", "/api/runners"): OWNER,
    ("PUT", "/api/runners/session"): RUNNER,
    ("POST", "/api/runners/acquire"): RUNNER,
    ("GET", "/api/builds/{build_id}/plan"): ATTEMPT,
    ("GET", "/api/builds/{build_id}/context.tar.zst"): ATTEMPT,
    ("GET", "/api/builds/{build_id}/secrets"): ATTEMPT,
    ("POST", "/api/builds/{build_id}/heartbeat"): ATTEMPT,
    ("GET", "/api/builds/{build_id}/signals"): ATTEMPT,
    ("PATCH", "/api/builds/{build_id}/logs"): ATTEMPT,
    ("POST", "/api/builds/{build_id}/release"): ATTEMPT,
    ("POST", "/api/builds/{build_id}/result"): ATTEMPT,
    # Whoever has a token gets it back: what it opens is decided where it is used.
    ("GET", "/v2/token"): EVERYBODY | NOBODY,
    ("GET", "/v2/{path:path}"): REGISTRY,
    ("POST", "/v2/{path:path}"): row(owner=IN, own_project=IN, attempt=IN),
    ("PUT", "/v2/{path:path}"): row(owner=IN, own_project=IN),  # of a tag
    ("PATCH", "/v2/{path:path}"): row(owner=IN, own_project=IN, attempt=IN),
    ("DELETE", "/v2/{path:path}"): row(owner=IN, own_project=IN),
}
# What stands for {path} with each method.
REGISTRY_PATHS = {
    "GET": "web/tags/list",
    "POST": "web/blobs/uploads/",
    "PUT": "web/manifests/latest",
    "PATCH": "web/blobs/uploads/u_22222222",
    "DELETE": "web/manifests/latest",
}


def served(house: House) -> set[tuple[str, str]]:
    found = set()
    for route in house.router.app.routes:
        assert isinstance(route, Route)
        found |= {(method, route.path) for method in (route.methods or ()) if method != "HEAD"}
    return found


@dataclass(frozen=True)
class Scene:
    """Tokens of everybody, and the things that the routes speak of."""

    house: House
    tokens: dict[str, str | None]
    build_id: str
    fences: dict[str, int]

    def requests(self) -> Iterator[tuple[str, str, str, Expected]]:
        for (method, path), expected in TABLE.items():
            for who in WHO:
                yield method, path, who, expected[who]

    async def status(self, method: str, path: str, who: str) -> httpx.Response:
        filled = (
            path.replace("{build_id}", self.build_id)
            .replace("{project:path}", "web")
            .replace("{token_id}", "t_none")
            .replace("{path:path}", REGISTRY_PATHS[method])
        )
        headers = {FENCE_HEADER: str(self.fences.get(who, 2)), "Upload-Offset": "0"}
        body = BODIES.get((method, path), b"{}")
        if who == "attempt" and path.endswith(("/release", "/result")):
            body = b"[]"  # refused as a document, so that the attempt stays as it is
        async with self.house.http(self.tokens[who]) as http:
            query = {"project": "web", "name": "staging"} if "environments" in path else {}
            projects_query = path in {"/api/contexts/objects", "/api/builds:run"}
            query |= {"project": "web"} if projects_query else {}
            return await http.request(method, filled, content=body, headers=headers, params=query)


# Documents that are well-formed, so that the token alone decides; `{}` where it does not matter.
CONTEXT_JSON = b'{"digest":"sha256:%s","size_bytes":1,"unpacked_bytes":1,"files":1}' % (b"1" * 64)
BODIES = {
    ("POST", "/api/builds/{build_id}/rerun"): b'{"key":"again"}',
    ("POST", "/api/contexts"): b'{"project":"web","digest":"sha256:%s","pages":""}' % (b"1" * 64),
    ("POST", "/api/contexts/objects"): b"",
    ("POST", "/api/builds"): b'{"project":"web","plan":{},"context":%s}' % CONTEXT_JSON,
    ("POST", "/api/builds:why"): b'{"project":"web"}',
    ("POST", "/api/projects"): b'{"name":"web"}',
    ("POST", "/api/environments"): b'{"project":"web","name":"staging"}',
    ("POST", "/api/tokens"): b'{"key":"k","name":"ci","project":"web"}',
    ("POST", "/api/builds/{build_id}/release"): b'{"reason":"draining"}',
    ("POST", "/api/builds/{build_id}/result"): b'{"outcome":"failed"}',
    ("POST", "/api/runners"): b'{"name":"attic"}',
    ("PATCH", "/v2/{path:path}"): b"",
}


@pytest.fixture
async def scene(house: House) -> Scene:
    own, other = await house.project_token("web"), await house.project_token("shop")
    runner: ScriptedRunner = await house.runner()
    spent_build, spent = await house.leased(runner)
    image = tiny_image()
    await push_image(house.http(spent.token), "web", image)
    await house.client(spent.token).report(spent_build.id, spent.fence, image.envelope())
    build, stale = await house.leased(runner)
    await house.client(stale.token).release(build.id, stale.fence, Release(reason="draining"))
    grant = (await runner.acquire()).grants[0]
    assert grant.build_id == build.id
    _, foreign = await house.leased(await house.runner("laptop"), project="shop")
    forged = grant.token[:-4] + ("AAAA" if not grant.token.endswith("AAAA") else "BBBB")
    puller = await house.client(own).pull_token("web", PullTokenRequest())
    shop = (await house.client(other).pull_token("shop", PullTokenRequest())).token
    brief = await house.client(own).pull_token("web", PullTokenRequest(ttl_seconds=1))
    house.clock.advance(2)
    return Scene(
        house=house,
        tokens={
            "none": None,
            "garbage": "pho_" + "x" * 43,
            "owner": house.owner_token,
            "own-project": own,
            "other-project": other,
            "runner": runner.credential,
            "attempt": grant.token,
            "attempt-of-other-build": foreign.token,
            "stale-fence": stale.token,
            "forged": forged,
            "spent": spent.token,
            "puller": puller.token,
            "expired-puller": brief.token,
            "forged-puller": shop.replace("_shop~", "_web~"),
        },
        build_id=build.id,
        fences={"attempt": 2, "stale-fence": 1},
    )


def test_each_kind_of_token_has_an_entry_for_each_route() -> None:
    for route, expected in TABLE.items():
        assert set(expected) == set(WHO), route


async def test_the_table_speaks_of_every_route_that_is_served(house: House) -> None:
    assert served(house) == set(TABLE)


async def test_every_token_opens_what_the_table_says_and_nothing_else(scene: Scene) -> None:
    # Signals are held for 25 s unless there is a wish; with one they answer at once.
    await scene.house.http(scene.tokens["owner"]).post(
        f"/api/builds/{scene.build_id}/cancel", json={}
    )
    wrong = []
    for method, path, who, expected in scene.requests():
        if (method, path, expected) == ("GET", "/api/builds/{build_id}/events", IN):
            continue  # endless while the build lives; the life of a build shows them
        answered = await scene.status(method, path, who)
        got: Expected = answered.status_code
        if expected == IN and got not in {401, 403, 500}:
            continue
        if got != expected:
            wrong.append((method, path, who, expected, got, answered.text[:120]))
    assert not wrong, "\n".join(map(str, wrong))


async def test_a_token_for_one_fence_does_not_serve_with_another_in_the_header(
    scene: Scene,
) -> None:
    async with scene.house.http(scene.tokens["attempt"]) as http:
        path = f"/api/builds/{scene.build_id}/heartbeat"
        for fence in ("1", "3", "0", "-1", "two", "²", ""):
            encoded = {FENCE_HEADER.encode(): fence.encode("latin-1")}
            answered = await http.post(path, content=b"{}", headers=encoded)
            assert answered.status_code in {400, 409}, (fence, answered.text)


@pytest.mark.parametrize("fence", ["0", "00", "99", "999999999", "x", "-1", ""])
async def test_a_made_up_attempt_is_nobody(scene: Scene, fence: str) -> None:
    token = f"phb_{scene.build_id}.{fence}.{'A' * 43}"
    async with scene.house.http(token) as http:
        answered = await http.get(f"/api/builds/{scene.build_id}/plan", headers={FENCE_HEADER: "1"})
    assert answered.status_code == 401


async def test_a_project_sees_only_its_own_builds_uploads_and_projects(scene: Scene) -> None:
    other = scene.house.client(scene.tokens["other-project"])

    assert {view.project for view in (await other.builds()).builds} == {"shop"}
    assert [view.name for view in (await other.projects()).projects] == ["shop"]
    assert (await other.build("@")).project == "shop"
    assert (await other.build("b_")).project == "shop"


async def test_the_spent_attempt_is_told_that_it_is_over(scene: Scene) -> None:
    token = scene.tokens["spent"]
    assert token is not None
    build_id, fence = token.removeprefix("phb_").split(".")[:2]
    async with scene.house.http(token) as http:
        for method, what in (("GET", "plan"), ("POST", "heartbeat"), ("PATCH", "logs")):
            answered = await http.request(
                method,
                f"/api/builds/{build_id}/{what}",
                headers={FENCE_HEADER: fence, "Upload-Offset": "0"},
                content=b"{}",
            )
            assert answered.status_code == 409, (what, answered.text)
            assert answered.json()["type"].endswith("build-finished")


async def test_the_fence_of_a_lost_attempt_neither_beats_nor_logs(scene: Scene) -> None:
    token = scene.tokens["stale-fence"]
    with pytest.raises(LeaseLost):
        await scene.house.client(token).heartbeat(scene.build_id, 1, Heartbeat())
    with pytest.raises(LeaseLost):
        await scene.house.client(token).append_log(scene.build_id, 1, 0, b"")
