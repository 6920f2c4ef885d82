"""What single kinds of tokens meet; every kind with every route is in `test_token_matrix`."""

from dataclasses import dataclass

import pytest

from pierhead.protocol.errors import LeaseLost
from pierhead.protocol.lease import Heartbeat, Release
from pierhead.protocol.version import FENCE_HEADER
from tests.integration.router.stage import House, ScriptedRunner, push_image, tiny_image


@dataclass(frozen=True)
class Scene:
    """Some tokens, and the build that most of them are for."""

    house: House
    tokens: dict[str, str | None]
    build_id: str


@pytest.fixture
async def scene(house: House) -> Scene:
    other = await house.project_token("shop")
    runner: ScriptedRunner = await house.runner()
    spent_build, spent = await house.leased(runner)
    image = tiny_image()
    await push_image(house.http(spent.token), "web", image)
    await house.client(spent.token).report(spent_build.id, spent.fence, image.envelope())
    build, stale = await house.leased(runner)
    await house.client(stale.token).release(build.id, stale.fence, Release(reason="draining"))
    grant = (await runner.acquire()).grants[0]
    assert grant.build_id == build.id
    await house.leased(await house.runner("laptop"), project="shop")
    return Scene(
        house=house,
        tokens={
            "other-project": other,
            "attempt": grant.token,
            "stale-fence": stale.token,
            "spent": spent.token,
        },
        build_id=build.id,
    )


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
