"""A runner that is removed: it is not let in again, and what it had waits again."""

import asyncio

import pytest

from pierhead.protocol.errors import PierheadError, Refused, TokenRefused
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.runner import AddRunner, Enroll
from tests.integration.router.stage import House


async def test_what_a_removed_runner_was_building_waits_again(house: House) -> None:
    runner = await house.runner()
    build, _ = await house.leased(runner)

    removed = await house.owner.remove_runner("desktop")

    assert removed.builds == (build.id,)
    assert (await house.owner.build(build.id)).state == "queued"
    assert (await house.owner.capabilities()).runners == ()
    with pytest.raises(TokenRefused):
        await runner.acquire()


async def test_the_code_of_a_removed_runner_does_not_bring_it_back(house: House) -> None:
    code = (await house.owner.add_runner(AddRunner(name="desktop"))).code
    enroll = Enroll(secret=parse_join_code(code).secret, nonce="n", name="desktop")
    await house.client(None).enroll(enroll)
    await house.owner.remove_runner("desktop")

    with pytest.raises(PierheadError):
        await house.client(None).enroll(enroll)

    assert (await house.owner.capabilities()).runners == ()


async def test_a_runner_that_is_removed_while_it_waits_is_told_so(house: House) -> None:
    runner = await house.runner()
    waiting = asyncio.create_task(runner.acquire(hold_ms=25_000))
    await house.until_parked()

    await house.owner.remove_runner("desktop")

    with pytest.raises(TokenRefused, match="not known here any more"):
        await waiting


async def test_two_codes_for_one_name_let_one_machine_in(house: House) -> None:
    codes = [(await house.owner.add_runner(AddRunner(name="desktop"))).code for _ in range(2)]
    first, second = (
        Enroll(secret=parse_join_code(code).secret, nonce=f"machine-{number}")
        for number, code in enumerate(codes)
    )
    joined = await house.client(None).enroll(first)

    with pytest.raises(Refused) as refused:
        await house.client(None).enroll(second)

    assert refused.value.problem.slug == "runner-name-taken"
    assert await house.client(None).enroll(first) == joined


async def test_a_removed_name_can_be_given_again(house: House) -> None:
    await house.runner()
    await house.owner.remove_runner("desktop")

    assert (await (await house.runner()).acquire()).grants == ()


@pytest.mark.parametrize("name", ["nobody", "a" * 2000, "é"])
async def test_a_runner_that_is_not_there_is_said(house: House, name: str) -> None:
    with pytest.raises(Refused) as refused:
        await house.owner.remove_runner(name)

    assert refused.value.problem.slug == "not-found"
    assert refused.value.problem.hint == "list them: pierhead nodes"


async def test_this_machines_own_runner_stays(house: House) -> None:
    await house.router.runners.enroll_here()

    with pytest.raises(Refused) as refused:
        await house.owner.remove_runner("here")

    assert refused.value.problem.slug == "not-allowed"
