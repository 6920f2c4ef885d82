"""A newer build of a group ends older ones; who would take a build; passwords that only pull."""

import pytest

from pierhead.protocol.build import WhyRequest
from pierhead.protocol.errors import Invalid, TokenRefused
from pierhead.protocol.meta import PullTokenRequest
from pierhead.protocol.project import NewProject
from pierhead.protocol.result import Envelope, StopProof
from tests.integration.router.stage import House, push_image, tiny_image


async def test_a_newer_build_of_a_group_ends_those_that_wait_and_those_that_run(
    house: House,
) -> None:
    runner = await house.runner()
    running, grant = await house.leased(runner, key="1", supersedes="web:main")
    waiting = await house.submit(key="2")
    other = await house.submit(key="3", supersedes="web:pr-42")
    abroad = await house.submit(project="shop", key="3", supersedes="web:main")

    newest = await house.submit(key="4", supersedes="web:main")

    found = await house.owner.build(running.id)
    assert found.cancel_requested
    assert found.cancelled_by == "a newer build"
    assert found.cancel_reason == f"replaced by {newest.id}"
    for untouched in (waiting, other, abroad, newest):
        assert (await house.owner.build(untouched.id)).state == "queued"
    assert (await house.submit(key="5", supersedes="web:pr-42")).supersedes == "web:pr-42"
    assert (await house.owner.build(other.id)).state == "cancelled"
    # The one that ran says that it stopped; only then it has ended.
    proof = StopProof(took_ms=5)
    ended = Envelope(outcome="cancelled", stop_proof=proof)
    await house.client(grant.token).report(running.id, grant.fence, ended)
    assert (await house.owner.build(running.id)).state == "cancelled"


async def test_the_repeat_of_an_older_submit_ends_nothing(house: House) -> None:
    await house.runner()
    old = await house.submit(key="1", supersedes="web:main")
    new = await house.submit(key="2", supersedes="web:main")

    again = await house.submit(key="1", supersedes="web:main")

    assert (again.id, again.state) == (old.id, "cancelled")
    assert (await house.owner.build(new.id)).state == "queued"


async def test_asking_who_would_build_queues_nothing(house: House) -> None:
    await house.runner("desktop")
    await house.runner("pi", platforms=("linux/arm64",))

    found = await house.owner.why_not(WhyRequest(project="web", platform="linux/amd64"))

    assert found.eligible == ("desktop",)
    assert [(one.runner, "linux/arm64 only" in one.reason) for one in found.rejections] == [
        ("pi", True)
    ]
    assert found.verdict == "waits: desktop is free"
    assert (await house.owner.builds()).builds == ()
    assert (await house.owner.projects()).projects == ()


async def test_asking_for_a_platform_that_nobody_has_says_what_would_happen(house: House) -> None:
    await house.runner("desktop")

    found = await house.owner.why_not(
        WhyRequest(project="web", platform="linux/riscv64", if_nobody="fail")
    )

    assert found.eligible == ()
    assert found.verdict == "fails: no runner can take this build (desktop)"


async def test_a_pull_password_pulls_from_its_repository_until_its_time_is_over(
    house: House,
) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    image = tiny_image()
    await push_image(house.http(grant.token), "web", image)
    await house.client(grant.token).report(build.id, grant.fence, image.envelope())
    await house.owner.add_project(NewProject(name="shop"))
    made = await house.owner.pull_token("web", PullTokenRequest(ttl_seconds=60))
    http = house.http(made.token)

    assert (made.registry, made.repository) == (house.host, "web")
    assert (await http.get(f"/v2/web/manifests/{image.digest}")).status_code == 200
    assert (await http.get(f"/v2/shop/manifests/{image.digest}")).status_code == 404
    assert (await http.post("/v2/web/blobs/uploads/")).status_code == 403
    assert (await http.delete(f"/v2/web/manifests/{image.digest}")).status_code == 403
    assert (await http.get("/api/builds")).status_code == 403
    house.clock.advance(61)
    over = await http.get(f"/v2/web/manifests/{image.digest}")
    assert over.status_code == 401
    assert "time of this token is over" in over.text


@pytest.mark.parametrize("seconds", [0, -1, 86_401])
async def test_a_pull_password_lives_at_most_a_day(house: House, seconds: int) -> None:
    await house.owner.add_project(NewProject(name="web"))

    with pytest.raises(Invalid):
        await house.owner.pull_token("web", PullTokenRequest(ttl_seconds=seconds))


async def test_a_pull_password_whose_time_was_changed_is_nobody(house: House) -> None:
    await house.owner.add_project(NewProject(name="web"))
    made = await house.owner.pull_token("web", PullTokenRequest(ttl_seconds=60))
    repository, seconds, mac = made.token.split("~")

    for forged in (
        f"{repository}~{int(seconds) + 3600}~{mac}",
        f"phl_shop~{seconds}~{mac}",
        f"{repository}~0{seconds}~{mac}",
        f"{repository}~{seconds}~",
        "phl_",
    ):
        with pytest.raises(TokenRefused, match="token"):
            await house.client(forged).capabilities()
