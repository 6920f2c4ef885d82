"""What people are told of a build that waits: its place, how long, and what for."""

import pytest

from pierhead.protocol.build import Queued
from pierhead.protocol.result import Envelope
from tests.integration.router.stage import House, ScriptedRunner, push_image, tiny_image


async def built(house: House, runner: ScriptedRunner, seconds: float, **options: object) -> None:
    """Build something that takes so long."""
    build, grant = await house.leased(runner, **options)
    image = tiny_image()
    await push_image(house.http(grant.token), grant.repository, image)
    house.clock.advance(seconds)
    await house.client(grant.token).report(build.id, grant.fence, image.envelope())
    assert (await house.owner.build(build.id)).state == "succeeded"


async def test_a_build_that_waits_is_told_when_it_is_likely_to_begin(house: House) -> None:
    runner = await house.runner(slots=1)
    await built(house, runner, 20, key="1")
    running, _ = await house.leased(runner, key="2")
    house.clock.advance(5)
    first, second = await house.submit(key="3"), await house.submit(key="4")

    page = {one.id: one for one in (await house.owner.builds()).builds}
    shown, why = await house.owner.build(second.id), await house.owner.why(second.id)
    told = await anext(house.owner.events(second.id))

    assert first.expected_wait_seconds is None  # a submit does not look
    assert page[first.id].expected_wait_seconds == pytest.approx(15, abs=3)
    assert page[second.id].expected_wait_seconds == pytest.approx(35, abs=3)
    for one in (page[second.id], shown, why, told):
        assert not isinstance(one, str)
        assert getattr(one, "position") == 2  # noqa: B009 - each of them has one
        assert getattr(one, "expected_wait_seconds") == pytest.approx(35, abs=3)  # noqa: B009
    assert isinstance(told, Queued)
    assert shown.waits_for == "desktop is busy"
    assert page[running.id].expected_wait_seconds is None
    assert page[running.id].position is None


async def test_one_that_runs_beyond_its_time_is_not_taken_to_be_over(house: House) -> None:
    runner = await house.runner(slots=1)
    await built(house, runner, 8, key="1")
    await house.leased(runner, key="2")
    waiting = await house.submit(key="3")

    house.clock.advance(20)
    shown = await house.owner.build(waiting.id)

    assert shown.expected_wait_seconds is not None
    assert 5 <= shown.expected_wait_seconds <= 7  # a quarter of the 20 s and something


async def test_where_nothing_was_built_yet_nothing_is_foretold(house: House) -> None:
    runner = await house.runner(slots=1)
    await house.leased(runner, key="1")
    shown = await house.owner.build((await house.submit(key="2")).id)

    assert (shown.position, shown.expected_wait_seconds) == (1, None)
    assert shown.waits_for == "desktop is busy"


async def test_a_project_that_built_nothing_is_taken_to_be_as_others(house: House) -> None:
    runner = await house.runner(slots=1)
    await built(house, runner, 20, key="1")
    await house.leased(runner, project="shop", key="1")
    shown = await house.owner.build((await house.submit(project="new", key="1")).id)

    assert shown.expected_wait_seconds == pytest.approx(20, abs=3)


async def test_what_nobody_could_take_is_told_why_instead(house: House) -> None:
    runner = await house.runner(slots=1)
    await built(house, runner, 20, key="1")
    waiting = await house.submit(key="2", if_nobody="wait")

    house.clock.advance(40)
    await house.client(await house.project_token("web")).builds()
    shown, why = await house.owner.build(waiting.id), await house.owner.why(waiting.id)

    assert (shown.position, shown.expected_wait_seconds) == (1, None)
    assert shown.waits_for == "desktop is offline"
    assert why.expected_wait_seconds is None
    assert why.verdict == "waits: desktop is offline"
    assert not why.may_run_here  # nothing is built here at all


async def test_a_build_for_several_platforms_begins_with_the_first_of_them(house: House) -> None:
    runner = await house.runner(slots=1)
    await built(house, runner, 20, key="1")
    pi = await house.runner("pi", slots=1, platforms=("linux/arm64",))
    await house.leased(runner, key="2", on=("desktop",))
    await house.leased(pi, key="3", on=("pi",))
    house.clock.advance(5)
    parent = await house.submit(key="4", platforms=("linux/amd64", "linux/arm64"))

    shown, why = await house.owner.build(parent.id), await house.owner.why(parent.id)

    assert shown.position is None
    assert shown.expected_wait_seconds == pytest.approx(15, abs=3)
    assert [one.position for one in why.platforms] == [1, 2]
    assert all(one.expected_wait_seconds is not None for one in why.platforms)


async def test_whoever_was_not_asked_for_is_no_news(house: House) -> None:
    await house.runner("desktop")
    await house.runner("pi")
    build = await house.submit(key="1", on=("desktop",))

    told = await anext(house.owner.events(build.id))
    why = await house.owner.why(build.id)

    assert isinstance(told, Queued)
    assert told.rejections == ()
    assert [(one.runner, one.reason) for one in why.rejections] == [
        ("pi", "left out by --on desktop")
    ]


async def test_a_failed_build_says_nothing_about_how_long_builds_take(house: House) -> None:
    runner = await house.runner(slots=1)
    await built(house, runner, 20, key="1")
    build, grant = await house.leased(runner, key="2")
    house.clock.advance(300)
    await house.client(grant.token).report(build.id, grant.fence, Envelope(outcome="failed"))
    await house.leased(runner, key="3")
    shown = await house.owner.build((await house.submit(key="4")).id)

    assert shown.expected_wait_seconds == pytest.approx(20, abs=3)
