"""A build again, and one that waits taken by the control plane's own machine."""

import pytest

from pierhead.protocol.build import Rerun
from pierhead.protocol.errors import Invalid, Refused
from tests.integration.router.stage import House


async def test_a_rerun_is_the_same_build_under_another_key(house: House) -> None:
    runner = await house.runner()
    first, _ = await house.leased(runner, key="1", tags=("1.2",))

    again = await house.owner.rerun(first.id, Rerun(key="2"))
    repeat = await house.owner.rerun(first.id, Rerun(key="2"))
    await house.until_parked(0)

    assert again.id != first.id
    assert repeat.id == again.id
    assert (again.plan, again.tags, again.state) == (first.plan, ("1.2",), "queued")
    assert (await house.owner.build(first.id)).state == "leased"


async def test_a_build_with_secrets_is_not_rerun_because_they_are_not_kept(house: House) -> None:
    await house.runner()
    build = await house.submit(secrets={"npm": b"hunter2"})
    with pytest.raises(Invalid, match="had secrets, and they are not kept"):
        await house.owner.rerun(build.id, Rerun(key="2"))


async def test_whoever_asks_for_their_own_sees_no_other_ones(house: House) -> None:
    await house.runner()
    mine = await house.submit()
    async with house.client(await house.project_token("web")) as holder:
        theirs = await holder.rerun(mine.id, Rerun(key="2"))
        listed = await holder.builds(mine=True)
    all_of_them = await house.owner.builds()

    assert [one.id for one in listed.builds] == [theirs.id]
    assert listed.builds[0].position == 2
    assert [one.submitted_by for one in all_of_them.builds] == ["project web", "the owner"]


async def test_another_project_cannot_rerun_a_build(house: House) -> None:
    await house.runner()
    build = await house.submit()
    async with house.client(await house.project_token("shop")) as shop:
        with pytest.raises(Refused, match="there is no build"):
            await shop.rerun(build.id, Rerun(key="2"))
        with pytest.raises(Refused, match="there is no build"):
            await shop.run_here(build.id)


async def test_where_nothing_is_built_here_a_build_cannot_be_asked_to(house: House) -> None:
    await house.runner()
    build = await house.submit()
    with pytest.raises(Refused, match="this machine builds nothing itself"):
        await house.owner.run_here(build.id)


async def test_a_build_that_does_not_wait_is_not_run_here(house: House) -> None:
    build, _ = await house.leased(await house.runner())
    with pytest.raises(Invalid, match=f"{build.id} does not wait: it is leased on desktop"):
        await house.owner.run_here(build.id)
