"""A failure that is its runner's is left to others; when nobody is left, it is told as it is."""

import msgspec
import pytest
import zstandard

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.errors import LeaseLost
from pierhead.protocol.lease import Grant, Release
from pierhead.protocol.plan import IfNobody
from pierhead.protocol.result import Envelope, Failure, Fault, Receipt
from tests.integration.router.stage import House, ScriptedRunner

FULL = Failure(
    cause="disk-full",
    message="the runner's disk is full",
    detail="1.0 MB of 50.3 MB were free at /x",
    hint="free some space on the runner, then build again",
    fault="runner",
)
SAID = "the runner's disk is full: 1.0 MB of 50.3 MB were free at /x"


async def fail(house: House, grant: Grant, failure: Failure = FULL) -> Receipt:
    envelope = Envelope(outcome="failed", failure=failure)
    return await house.client(grant.token).report(grant.build_id, grant.fence, envelope)


async def taken(runner: ScriptedRunner) -> Grant | None:
    return next(iter((await runner.acquire()).grants), None)


async def granted(runner: ScriptedRunner) -> Grant:
    grant = await taken(runner)
    assert grant is not None
    return grant


async def test_a_full_disk_leaves_the_build_to_another_runner_whose_log_says_why(
    house: House,
) -> None:
    one, two = await house.runner("one"), await house.runner("two")
    build, grant = await house.leased(one, if_nobody="fail")

    receipt = await fail(house, grant)
    again = await taken(one)
    moved, packed = await granted(two), zstandard.compress(b"STEP 1/1\n")
    await house.client(moved.token).append_log(build.id, moved.fence, 0, packed)
    log = await house.owner.log(build.id)

    assert receipt.state == "queued"
    assert again is None
    assert moved.fence == grant.fence + 1
    assert log.decode() == f"note: built on two, as one could not build it: {SAID}\nSTEP 1/1\n"
    with pytest.raises(LeaseLost):
        await fail(house, grant)  # again, as if the answer had been lost


async def test_when_nobody_else_is_left_the_build_fails_with_the_runners_words(
    house: House,
) -> None:
    one, two = await house.runner("one"), await house.runner("two")
    build, grant = await house.leased(one, if_nobody="fail")
    await fail(house, grant)

    receipt = await fail(house, await granted(two))
    view = await house.owner.build(build.id)

    assert (receipt.state, view.state, view.runner) == ("failed", "failed", "two")
    assert view.result is not None
    assert view.result.failure == FULL


@pytest.mark.parametrize("if_nobody", ["wait", "fail"])
async def test_a_runner_that_is_alone_tells_its_full_disk_at_once(
    house: House, if_nobody: IfNobody
) -> None:
    await house.runner("gone")
    one = await house.runner("one")
    house.clock.advance(60)
    build = await house.submit(if_nobody=if_nobody, on=("one", "gone"))

    receipt = await fail(house, await granted(one))

    assert receipt.state == "failed"
    assert (await house.owner.build(build.id)).fence == 1


@pytest.mark.parametrize(("fault", "tries"), [("build", 1), ("either", 2), ("runner", 3)])
async def test_a_failure_is_tried_elsewhere_as_often_as_it_may_be_its_runners(
    house: House, fault: Fault, tries: int
) -> None:
    runners = [await house.runner(name) for name in ("a", "b", "c", "d")]
    build = await house.submit(if_nobody="fail")
    failure = msgspec.structs.replace(FULL, fault=fault)
    for runner in runners[:tries]:
        await fail(house, await granted(runner), failure)

    view = await house.owner.build(build.id)

    assert (view.state, view.fence) == ("failed", tries)
    assert view.result is not None
    assert view.result.failure == failure


async def test_a_build_that_was_cancelled_is_not_left_to_anybody(house: House) -> None:
    one, _ = await house.runner("one"), await house.runner("two")
    build, grant = await house.leased(one)
    await house.owner.cancel(build.id, CancelRequest())

    assert (await fail(house, grant)).state == "cancelled"


async def test_what_broke_a_runner_is_told_when_nobody_can_take_the_build(house: House) -> None:
    one = await house.runner("one")
    build, grant = await house.leased(one, if_nobody="fail")
    released = Release(reason="unhealthy", detail="runc is not installed")
    await house.client(grant.token).release(grant.build_id, grant.fence, released)
    await one.start("one-life-1", slots=0)
    house.clock.advance(1)
    await house.router.sweep.once()

    view = await house.owner.build(build.id)

    assert view.state == "failed"
    assert view.result is not None
    assert view.result.failure is not None
    assert view.result.failure.cause == "no-runner"
    assert view.result.failure.detail == "one: runc is not installed"
