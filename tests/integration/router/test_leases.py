"""Lost answers, dead runners, restarts and stops: nothing is lost, nothing is held twice."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import zstandard

from pierhead.protocol.errors import LeaseLost, Refused
from pierhead.protocol.lease import Held
from pierhead.protocol.plan import Plan, Submit
from pierhead.protocol.runner import SessionRelease
from tests.integration.router.stage import House, MovableClock, open_house


async def test_a_repeated_acquire_gets_the_very_same_grant(house: House) -> None:
    runner = await house.runner()
    await house.submit()
    request = runner.request()

    first = await runner.client.acquire(request)
    again = await runner.client.acquire(request)

    assert len(first.grants) == 1
    assert again == first
    assert (await house.owner.build("@")).attempts == 1


async def test_what_a_repeat_is_granted_is_good_for_a_whole_lease(house: House) -> None:
    runner = await house.runner()
    build = await house.submit()
    request = runner.request()
    await runner.client.acquire(request)  # as if its answer were lost
    house.clock.advance(19)

    await runner.client.acquire(request)
    house.clock.advance(19)
    await house.router.sweep.once()

    view = await house.owner.build(build.id)
    assert (view.state, view.attempts) == ("leased", 1)


async def test_a_request_that_was_overtaken_takes_nothing_back(house: House) -> None:
    runner = await house.runner()
    late = runner.request()  # it says that nothing is held, and travels for long
    build, grant = await house.leased(runner)
    held = Held(build_id=build.id, fence=grant.fence)
    await runner.acquire(slots=0, held=(held,))

    assert (await runner.client.acquire(late)).grants == ()

    view = await house.owner.build(build.id)
    assert (view.state, view.attempts) == ("leased", 1)


async def test_a_grant_that_its_runner_does_not_hold_goes_back_at_once(house: House) -> None:
    runner = await house.runner()
    _, grant = await house.leased(runner)

    answer = await runner.acquire(slots=0)  # another request, and nothing held

    assert answer.grants == ()
    assert (await house.owner.build(grant.build_id)).state == "queued"
    with pytest.raises(LeaseLost):
        await house.client(grant.token).append_log(grant.build_id, grant.fence, 0, b"")


async def test_what_the_runner_holds_in_vain_it_is_told_to_drop(house: House) -> None:
    runner = await house.runner()
    _, grant = await house.leased(runner)
    mine = Held(build_id=grant.build_id, fence=grant.fence)
    ghost = Held(build_id="b_nothere", fence=1)

    answer = await runner.acquire(slots=0, held=(mine, ghost))

    assert answer.drop == (ghost,)
    assert (await house.owner.build(grant.build_id)).state == "leased"


async def test_a_restarted_runner_loses_its_old_leases_at_once(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)

    await runner.start("second-life")

    assert (await house.owner.build(build.id)).state == "queued"
    again = (await runner.acquire()).grants[0]
    assert (again.build_id, again.fence) == (build.id, grant.fence + 1)


async def test_a_copy_of_a_credential_on_another_machine_is_refused(house: House) -> None:
    runner = await house.runner()
    build, _ = await house.leased(runner)

    with pytest.raises(Refused) as refused:
        await runner.start("thief", boot_id="boot-of-another-machine")

    assert refused.value.problem.slug == "session-superseded"
    assert (await house.owner.build(build.id)).state == "leased"


async def test_a_silent_attempt_is_back_in_the_queue_within_25_seconds(house: House) -> None:
    runner = await house.runner()
    build, _ = await house.leased(runner, if_nobody="wait")

    house.clock.advance(19)
    await house.router.sweep.once()
    assert (await house.owner.build(build.id)).state == "leased"
    house.clock.advance(6)
    await house.router.sweep.once()

    assert (await house.owner.build(build.id)).state == "queued"


async def test_three_silent_attempts_end_the_build(house: House) -> None:
    runner = await house.runner()
    build = await house.submit(if_nobody="wait")
    for _ in range(3):
        assert (await runner.acquire()).grants
        house.clock.advance(25)
        await house.router.sweep.once()

    seen = await house.owner.build(build.id)
    assert seen.state == "failed"
    assert seen.result is not None
    assert seen.result.failure is not None
    assert seen.result.failure.cause == "runners-lost"


async def test_a_restart_keeps_queue_leases_keys_and_tokens(tmp_path: Path) -> None:
    clock = MovableClock()
    async with open_house(tmp_path, clock) as house:
        project = await house.project_token("web")
        runner = await house.runner()
        leased, grant = await house.leased(runner)
        await house.client(grant.token).append_log(
            leased.id, grant.fence, 0, zstandard.compress(b"before\n")
        )
        queued = await house.submit(key="ci-1", if_nobody="wait")
    clock.advance(3600)  # down for an hour
    async with open_house(tmp_path, clock) as house:
        await house.router.sweep.once()
        assert (await house.client(project).build(leased.id)).state == "leased"
        again = Submit(
            project="web",
            plan=Plan(),
            context=await house.upload(),
            key="ci-1",
            if_nobody="wait",
        )
        assert (await house.owner.submit(again)).id == queued.id
        accepted = await house.client(grant.token).append_log(
            leased.id, grant.fence, 7, zstandard.compress(b"after\n")
        )
        assert accepted.next_offset == 13
        assert await house.owner.log(leased.id) == b"before\nafter\n"
        # The lease was extended by the outage, not for ever.
        clock.advance(25)
        await house.router.sweep.once()
        assert (await house.owner.build(leased.id)).state == "queued"


async def test_a_key_that_was_used_for_something_else_is_refused(house: House) -> None:
    await house.submit(key="ci-1")

    with pytest.raises(Refused) as refused:
        await house.submit(key="ci-1", plan=Plan(target="other"))

    assert refused.value.problem.slug == "key-reused"


async def test_a_waiting_runner_gets_a_build_when_it_comes(house: House) -> None:
    runner = await house.runner()
    held = asyncio.create_task(runner.acquire(hold_ms=25_000))
    await house.until_parked()

    build = await house.submit()

    async with asyncio.timeout(20):
        assert [grant.build_id for grant in (await held).grants] == [build.id]


async def test_a_runner_that_went_away_is_not_held_for(house: House) -> None:
    runner = await house.runner()
    held = asyncio.create_task(runner.acquire(hold_ms=25_000))
    await house.until_parked()
    held.cancel()

    await house.until_parked(0)
    build = await house.submit()

    assert (await house.owner.build(build.id)).state == "queued"
    assert [grant.build_id for grant in (await runner.acquire()).grants] == [build.id]


async def test_a_hold_is_a_sign_of_life_of_its_beginning_only(house: House) -> None:
    runner = await house.runner()
    held = asyncio.create_task(runner.acquire(hold_ms=25_000))
    await house.until_parked()
    house.clock.advance(36)
    await house.submit()
    await held

    [seen] = (await house.owner.capabilities()).runners

    assert seen.online is False


async def test_a_clock_that_is_set_back_makes_no_hold_longer(house: House) -> None:
    runner = await house.runner()
    held = asyncio.create_task(runner.acquire(hold_ms=500))
    await house.until_parked()

    house.clock.advance(-3600)

    async with asyncio.timeout(20):  # it would be 25 s otherwise, and again and again
        assert (await held).grants == ()


async def test_a_stopping_server_answers_all_that_it_holds(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    other = await house.runner("laptop")
    polls = asyncio.create_task(other.acquire(hold_ms=25_000))
    signals = asyncio.create_task(house.client(grant.token).signals(build.id, grant.fence))

    async def follow() -> int:
        return len([event async for event in house.owner.events(build.id)])

    events = asyncio.create_task(follow())
    await house.until_parked()
    await house.until_watched(build.id, 2)

    house.router.bells.drain()

    async with asyncio.timeout(20):
        assert (await polls).retry_after_ms > 0
        assert not (await signals).cancel_requested
        await events


async def test_nobody_registered_and_no_builder_here_fails_with_the_reason(house: House) -> None:
    build = await house.submit()

    why = await house.owner.why(build.id)

    assert (await house.owner.build(build.id)).state == "failed"
    assert why.rejections == ()


async def test_a_build_that_no_runner_fits_says_which_and_why(house: House) -> None:
    await house.runner(platforms=("linux/arm64",))
    build = await house.submit(plan=Plan(platform="linux/amd64"), if_nobody="wait")

    why = await house.owner.why(build.id)

    assert [rejected.runner for rejected in why.rejections] == ["desktop"]
    assert "linux/arm64 only" in why.rejections[0].reason
    assert why.verdict.startswith("waits")


async def test_a_runner_that_stops_is_not_waited_for(house: House) -> None:
    runner = await house.runner()
    await house.runner("here-as-well")
    build = await house.submit(if_nobody="fail", on=("desktop",))
    assert (await runner.acquire(slots=0)).grants == ()

    gone = await runner.release()
    await house.router.sweep.once()

    assert (gone.online, gone.stopped) == (False, True)
    ended = await house.owner.build(build.id)
    assert ended.state == "failed"
    assert ended.result is not None
    assert ended.result.failure is not None
    assert ended.result.failure.message.startswith("desktop is stopped")


async def test_a_silent_runner_is_still_waited_for_beside_one_that_stopped(house: House) -> None:
    runner, silent = await house.runner(), await house.runner("laptop")
    await runner.release()
    house.clock.advance(36)
    build = await house.submit(if_nobody="fail")

    await house.router.sweep.once()

    assert (await house.owner.build(build.id)).state == "queued"
    why = {one.runner: one.reason for one in (await house.owner.why(build.id)).rejections}
    assert why["desktop"].startswith("stopped since")
    assert why[silent.name].startswith("offline since")


async def test_a_session_that_has_ended_gets_nothing_more(house: House) -> None:
    runner = await house.runner()
    late, held = runner.request(), asyncio.create_task(runner.acquire(hold_ms=25_000))
    await house.until_parked()

    await runner.release()
    await runner.release()  # a lost answer is asked for again
    build = await house.submit(if_nobody="wait")

    for asked in (held, runner.client.acquire(late)):
        with pytest.raises(Refused) as refused:
            await asked
        assert refused.value.problem.slug == "session-superseded"
    assert (await house.owner.build(build.id)).state == "queued"


async def test_what_was_granted_while_the_runner_went_waits_again_uncounted(house: House) -> None:
    runner = await house.runner()
    build, _ = await house.leased(runner)

    await runner.release()

    again = await house.owner.build(build.id)
    assert (again.state, again.attempts) == ("queued", 0)


async def test_a_runner_that_stopped_may_begin_again_at_once_and_elsewhere(house: House) -> None:
    runner = await house.runner()
    old = runner.session_id
    await runner.release()

    await runner.start("desktop-life-2", boot_id="boot-of-another-machine")
    await house.client(runner.credential).release_session(SessionRelease(session_id=old))

    build, _ = await house.leased(runner)
    assert (await house.owner.build(build.id)).runner == "desktop"


async def test_why_an_earlier_process_took_nothing_is_not_the_next_ones_reason(
    house: House,
) -> None:
    runner = await house.runner()
    await runner.client.acquire(
        msgspec.structs.replace(runner.request(slots=0), reason="its disk is full")
    )
    build = await house.submit(if_nobody="wait")
    [before] = (await house.owner.why(build.id)).rejections

    await runner.start("desktop-life-2")

    assert before.reason == "its disk is full"
    assert (await house.owner.why(build.id)).rejections == ()
