"""Every endpoint with every kind of token, while the build it speaks of is in every state.

The tables of `matrix` are compared with what is served, so an endpoint without a row fails here.
"""

import json

import httpx
import pytest
from starlette.routing import Route

from pierhead.protocol.client.upload import upload
from pierhead.protocol.digest import digest_of
from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE, URN
from pierhead.router.http.registry import _ENDPOINTS
from tests.contexts import described
from tests.integration.router.matrix import (
    ENDING,
    REGISTRY,
    STATES,
    TABLE,
    WHO,
    Outcome,
    Scene,
    expected,
    set_scene,
)
from tests.integration.router.stage import House, push_image, tiny_image

OF_REGISTRY = "/v2/"


def served(house: House) -> set[tuple[str, str]]:
    found = set()
    for route in house.router.app.routes:
        assert isinstance(route, Route)
        found |= {(method, route.path) for method in (route.methods or ()) if method != "HEAD"}
    return found


async def test_the_table_has_every_route_that_is_served_and_no_other(house: House) -> None:
    assert {route for route in served(house) if not route[1].startswith(OF_REGISTRY)} == set(TABLE)


def test_the_table_of_the_registry_has_every_endpoint() -> None:
    endpoints = {
        (endpoint.__name__, method)
        for _, methods in _ENDPOINTS
        for method, endpoint in methods.items()
    }
    rows = {(name, method) for name, method, _ in REGISTRY}
    assert rows - {("token", "GET")} == endpoints


def test_every_row_says_what_everybody_gets() -> None:
    for rows in (*TABLE.values(), *REGISTRY.values()):
        for state in STATES:
            assert set(rows(state) if callable(rows) else rows) == set(WHO)


def outcome(answered: httpx.Response) -> Outcome:
    """Return the status, and the name of the problem if it is one."""
    if answered.is_success:
        return answered.status_code
    assert answered.headers["content-type"] == PROBLEM_MEDIA_TYPE
    return answered.status_code, json.loads(answered.content)["type"].removeprefix(URN)


def registry_outcome(answered: httpx.Response) -> Outcome:
    if answered.is_success:
        return answered.status_code
    if answered.request.method == "HEAD":
        return answered.status_code, ""
    return answered.status_code, json.loads(answered.content)["errors"][0]["code"]


@pytest.mark.parametrize("state", STATES)
async def test_every_token_opens_what_its_row_says_and_nothing_else(
    house: House, state: str
) -> None:
    scene = await set_scene(house, state)
    wrong = []
    # What ends a build comes last, and refusals before what is let through.
    for route, rows in sorted(TABLE.items(), key=lambda pair: pair[0] in ENDING):
        for who in sorted(WHO, key=lambda one: expected(rows, state, one) == 200):
            wanted = expected(rows, state, who)
            got = outcome(await scene.ask(route, who, let_in=wanted == 200))
            if got != wanted:
                wrong.append(f"{route} as {who}: {got}, not {wanted}")
    assert not wrong, "\n".join(wrong)
    assert (await house.owner.build(scene.made.build_id)).state == state, "nothing changed it"


@pytest.mark.parametrize("state", STATES)
async def test_every_token_opens_of_the_registry_what_its_row_says(
    house: House, state: str
) -> None:
    scene = await set_scene(house, state)
    wrong = []
    for (_, method, path), rows in REGISTRY.items():
        for who in sorted(WHO, key=lambda one: isinstance(expected(rows, state, one), int)):
            wanted = expected(rows, state, who)
            if method == "HEAD" and isinstance(wanted, tuple):
                wanted = (wanted[0], "")
            got = registry_outcome(await scene.ask_registry(method, path, who))
            if got != wanted:
                wrong.append(f"{method} /v2/{path} as {who}: {got}, not {wanted}")
    assert not wrong, "\n".join(wrong)


HOLDERS = ("writer", "writer_here", "writer_elsewhere", "reader", "attempt", "runner", "puller")
NOT_THERE = {
    "PROJECT": "none",
    "BUILD": "b_22222222",
    "CONTEXT": digest_of(b"no context"),
    "LAYER": digest_of(b"none"),
    "IMAGE": digest_of(b"no image"),
}
# In capitals what stands for a thing of another project, or for one that is nowhere.
FOREIGN = (
    ("GET", "/api/builds/BUILD", ""),
    ("GET", "/api/builds/BUILD/why", ""),
    ("GET", "/api/builds/BUILD/events", ""),
    ("GET", "/api/builds/BUILD/logs", ""),
    ("POST", "/api/builds/BUILD/cancel", "{}"),
    ("POST", "/api/builds/BUILD/rerun", '{"key":"x"}'),
    ("POST", "/api/builds/BUILD/run-here", "{}"),
    ("GET", "/api/builds/BUILD/plan", ""),
    ("GET", "/api/builds/BUILD/context.tar.zst", ""),
    ("GET", "/api/builds/BUILD/secrets", ""),
    ("POST", "/api/builds/BUILD/heartbeat", "{}"),
    ("GET", "/api/builds?project=PROJECT", ""),
    ("POST", "/api/contexts", '{"project":"PROJECT","digest":"CONTEXT","pages":""}'),
    ("POST", "/api/contexts/objects?project=PROJECT", ""),
    # In the own project: a context that only the other project has.
    ("POST", "/api/contexts", '{"project":"web","digest":"CONTEXT","pages":""}'),
    (
        "POST",
        "/api/builds",
        '{"project":"web","plan":{},"context":{"digest":"CONTEXT",'
        '"size_bytes":1,"unpacked_bytes":1,"files":1}}',
    ),
    ("GET", "/api/projects/PROJECT", ""),
    ("DELETE", "/api/projects/PROJECT", ""),
    ("GET", "/api/environments?project=PROJECT", ""),
    ("GET", "/api/tokens?project=PROJECT", ""),
    ("POST", "/api/projects/PROJECT/pull-tokens", "{}"),
    ("GET", "/v2/PROJECT/tags/list", ""),
    ("GET", "/v2/PROJECT/manifests/latest", ""),
    ("GET", "/v2/PROJECT/manifests/IMAGE", ""),
    ("GET", "/v2/PROJECT/blobs/LAYER", ""),
    ("GET", "/v2/PROJECT/referrers/IMAGE", ""),
    ("POST", "/v2/PROJECT/blobs/uploads/", ""),
    ("PUT", "/v2/PROJECT/manifests/latest", "{}"),
    ("DELETE", "/v2/PROJECT/manifests/latest", ""),
    ("DELETE", "/v2/PROJECT/blobs/LAYER", ""),
    # In the own repository: a digest that only the other project has.
    ("GET", "/v2/web/blobs/LAYER", ""),
    ("GET", "/v2/web/manifests/IMAGE", ""),
    ("POST", "/v2/web/blobs/uploads/?mount=LAYER&from=PROJECT", ""),
)


async def test_what_another_project_has_answers_as_what_is_not_there(house: House) -> None:
    scene = await set_scene(house, "leased")
    there = await _things_of_another_project(scene)
    wrong = []
    for method, path, body in FOREIGN:
        for who in HOLDERS:
            seen = await _asked(scene, who, method, path, body, there)
            unseen = await _asked(scene, who, method, path, body, NOT_THERE)
            if seen != unseen:
                wrong.append(f"{method} {path} as {who}: {seen}, but {unseen}")
    assert not wrong, "\n".join(wrong)


async def _things_of_another_project(scene: Scene) -> dict[str, str]:
    shop = scene.house.http(scene.tokens["stranger"])
    other = tiny_image("of the shop alone")
    await push_image(shop, "shop", other, "latest")
    secret = described({"Dockerfile": b"FROM the shop alone"})
    context = (await upload(scene.house.client(scene.tokens["stranger"]), "shop", secret)).context
    mine = await scene.house.client(scene.tokens["stranger"]).builds()
    return {
        "PROJECT": "shop",
        "BUILD": mine.builds[0].id,
        "CONTEXT": context.digest,
        "LAYER": digest_of(other.layer),
        "IMAGE": other.digest,
    }


async def _asked(
    scene: Scene, who: str, method: str, path: str, body: str, things: dict[str, str]
) -> tuple[int, str]:
    """Ask for things, and return the answer with their names taken out of it."""
    for name, thing in things.items():
        path, body = path.replace(name, thing), body.replace(name, thing)
    answered = await scene.send(method, path, scene.tokens[who], body.encode() or None)
    text = answered.text
    for name, thing in things.items():
        text = text.replace(thing, name)
    return answered.status_code, text
