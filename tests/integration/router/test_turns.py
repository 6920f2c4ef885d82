"""Many builds of one project keep no other project waiting."""

from pierhead.protocol.lease import Release
from tests.integration.router.stage import House, ScriptedRunner

WAITS = {"if_nobody": "wait"}


async def taken(runner: ScriptedRunner, slots: int = 1) -> list[str]:
    return [grant.project for grant in (await runner.acquire(slots=slots)).grants]


async def test_the_next_place_is_for_the_project_that_had_none_longest(house: House) -> None:
    runner = await house.runner(slots=20)
    for project in ("web", "web", "web", "web", "shop", "shop", "docs"):
        await house.submit(project, **WAITS)

    # The script never says that it holds what it got before, so each is asked for by another.
    got = []
    for number in range(7):
        if number:
            runner = await house.runner(f"runner-{number}")
        got += await taken(runner)

    assert got == ["web", "shop", "docs", "web", "shop", "web", "web"]


async def test_several_places_at_once_are_shared(house: House) -> None:
    for project in ("web", "web", "web", "shop"):
        await house.submit(project, **WAITS)

    assert await taken(await house.runner(), 2) == ["web", "shop"]


async def test_people_are_told_their_place_by_the_same_rule(house: House) -> None:
    runner = await house.runner()
    ids = [(await house.submit(one, **WAITS)).id for one in ("web", "web", "web", "web", "shop")]
    owner = house.owner

    assert [(await owner.build(one)).position for one in ids] == [1, 3, 4, 5, 2]
    assert await taken(runner) == ["web"]
    assert [(await owner.build(one)).position for one in ids[1:]] == [2, 3, 4, 1]
    assert (await owner.why(ids[-1])).position == 1


async def test_a_build_that_was_given_back_keeps_its_place(house: House) -> None:
    runner = await house.runner()
    first, grant = await house.leased(runner, project="web", **WAITS)
    await house.submit("shop", **WAITS)
    released = Release(reason="draining")
    await house.client(grant.token).release(first.id, grant.fence, released)

    again = await house.runner("other")

    assert [one.build_id for one in (await again.acquire()).grants] == [first.id]
    assert await taken(await house.runner("third")) == ["shop"]


async def test_what_nobody_here_can_take_stands_in_nobodys_way(house: House) -> None:
    runner = await house.runner()
    for project, on in (("docs", ("elsewhere",)), ("web", ()), ("docs", ())):
        await house.submit(project, on=on, **WAITS)

    assert await taken(runner) == ["docs"]
    assert await taken(await house.runner("other")) == ["web"]
    assert await taken(await house.runner("third")) == []
