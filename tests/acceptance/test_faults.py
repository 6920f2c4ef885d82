"""Real processes, real builds, and what goes wrong around them."""

import asyncio
import contextlib
import glob
import os
import random
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pierhead.protocol.build import BuildView, CancelRequest, Requeued, Started
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.upload import upload
from pierhead.protocol.errors import Invalid
from pierhead.protocol.plan import Plan
from tests.contexts import described
from tests.held_step import held_step
from tests.sight import is_gone, said_of, words_in
from tests.small_disk import small_disk

from .proxy import fault_proxy
from .stage import PATIENCE_SECONDS, Stage, eventually, finished, hello, stage, submit

# Half of the usual lease: 20 s become 10 s, and a machine that stumbles does not lose one.
SCALE = 0.5
LEASE_SECONDS = 25 * SCALE  # the longest that an attempt is silent, and still has its build
BASE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
"""
SLOW = BASE + (
    "RUN trap '' TERM; setsid sleep 300 & for i in $(seq 600); do echo line $i; sleep 0.1; done\n"
)
# Before and after a test holds such a step.
LINES = "trap '' TERM; { setsid sleep 3 & }; for i in $(seq 1 20); do echo line $i; done"
MORE_LINES = "for i in $(seq 21 40); do echo line $i; sleep 0.1; done"
UNCACHED = Plan(no_cache=True)


@pytest.mark.timeout(900)  # fifty builds
async def test_cut_replies_lose_no_build_and_build_none_twice(tmp_path: Path) -> None:
    cuts = {"POST /api/runners/acquire": 50, "POST /api/builds": 50}

    def should_cut(request: str) -> bool:
        # Every second reply of a kind, until a hundred were cut in all.
        left = cuts.get(request, 0)
        if left:
            seen = sum(reply.request == request for reply in proxy.replies)
            if seen % 2 == 0:
                cuts[request] = left - 1
                return True
        return False

    async with stage(tmp_path) as on, fault_proxy(on.port, should_cut) as proxy:
        await on.join("one", port=proxy.port)
        context = hello()
        async with on.client() as owner, on.client(proxy.port) as client:
            await upload(owner, "hello", context)
            for number in range(50):
                view = await submit(client, context, key=f"key-{number}")
                ended = await finished(owner, view.id)
                # By its repeat it had what was cut, and not by a lease that ran out.
                assert (ended.state, ended.attempts, ended.fence) == ("succeeded", 1, 1), ended
            page = await owner.builds(limit=200)
    assert len(page.builds) == 50
    assert len(proxy.cuts("POST /api/builds")) >= 49
    assert len(proxy.cuts("POST /api/runners/acquire")) >= 49


async def test_a_killed_runner_loses_its_build_to_the_queue_and_to_itself_when_restarted(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, time_scale=SCALE) as on:
        runner = await on.join("one")
        async with on.client() as owner:
            view = await submit(owner, hello(SLOW), key="slow", plan=UNCACHED, if_nobody="wait")
            await _reaches(owner, view.id, "line 1")
            builders = _processes_of(view.id)
            assert builders

            await runner.kill()

            async def requeued() -> bool:
                return (await owner.build(view.id)).state == "queued"

            await eventually(requeued, within=PATIENCE_SECONDS)
            await eventually(_gone(builders), within=PATIENCE_SECONDS)
            runner.start()

            async def again() -> bool:
                return (await owner.build(view.id)).attempts == 2

            await eventually(again, within=PATIENCE_SECONDS)
            await owner.cancel(view.id, CancelRequest())
            assert (await finished(owner, view.id)).state == "cancelled"


async def test_the_build_of_a_killed_runner_goes_here_as_soon_as_it_is_given_up(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, time_scale=SCALE) as on:
        runner = await on.join("one")
        async with on.client() as owner:
            view = await submit(owner, hello(SLOW), key="slow", plan=UNCACHED)
            await _reaches(owner, view.id, "line 1")

            await runner.kill()

            async def here() -> BuildView | None:
                seen = await owner.build(view.id)
                return seen if seen.attempts == 2 else None

            seen = await eventually(here, within=PATIENCE_SECONDS)
            assert (seen.runner, seen.why_here) == ("here", "one is offline")
            await owner.cancel(view.id, CancelRequest())
            await finished(owner, view.id)


async def test_a_runner_that_restarts_at_once_has_its_build_again_before_its_lease_ends(
    tmp_path: Path,
) -> None:
    # Three minutes are longer than any start takes.
    async with stage(tmp_path, time_scale=9) as on:
        runner = await on.join("one")
        async with on.client() as owner:
            view = await submit(owner, hello(SLOW), key="slow", plan=UNCACHED)
            await _reaches(owner, view.id, "line 1")

            await runner.kill()
            runner.start()

            async def again() -> bool:
                return (await owner.build(view.id)).attempts == 2

            await eventually(again, within=PATIENCE_SECONDS)
            # The new session alone proves that the old one is gone.
            assert await _why_again(owner, view.id) == ["one: its runner was restarted"]
            await owner.cancel(view.id, CancelRequest())
            assert (await finished(owner, view.id)).state == "cancelled"


async def test_a_killed_router_comes_back_and_the_build_goes_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.join("one")
        with held_step(LINES, MORE_LINES) as step:
            async with on.client() as owner:
                slow = hello(BASE + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED)
                await _reaches(owner, view.id, "line 20")

                await on.plane.kill()
                step.let_go()
                await on.start_plane()

                ended = await finished(owner, view.id)
                log = await owner.log(view.id)
    assert (ended.state, ended.attempts, ended.log_complete) == ("succeeded", 1, True)
    assert [f"line {n}".encode() in log for n in (1, 20, 40)] == [True] * 3


async def test_a_build_stands_still_while_the_router_is_away_for_longer_than_its_lease(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, time_scale=SCALE) as on:
        runner = await on.join("one")
        with held_step(LINES, MORE_LINES) as step:
            async with on.client() as owner:
                slow = hello(BASE + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED)
                await _reaches(owner, view.id, "line 20")

                await on.plane.kill()
                await eventually(_says(on, "lease.frozen"), within=PATIENCE_SECONDS)
                # It says so first, and then it does.
                await eventually(lambda: _frozen(view.id), within=PATIENCE_SECONDS)
                await _replaced_keeper(runner.pid)
                await asyncio.sleep(2)  # the new one tries to reach the router
                assert "lease.thawed" not in on.logs()
                assert await _frozen(view.id)
                await on.start_plane()
                await eventually(_says(on, "lease.thawed"), within=PATIENCE_SECONDS)

                step.let_go()
                ended = await finished(owner, view.id)
                log = await owner.log(view.id)
    assert (ended.state, ended.attempts, ended.log_complete) == ("succeeded", 1, True)
    assert [log.count(f"line {n}\n".encode()) for n in (1, 20, 40)] == [1, 1, 1]


async def test_a_router_that_stood_still_gives_every_attempt_that_time(tmp_path: Path) -> None:
    async with stage(tmp_path, time_scale=SCALE) as on:
        await on.join("one")
        with held_step(LINES) as step:
            async with on.client() as owner:
                slow = hello(BASE + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED)
                await _reaches(owner, view.id, "line 20")

                os.kill(on.plane.pid, signal.SIGSTOP)
                await asyncio.sleep(1.5 * LEASE_SECONDS)  # as a machine that is suspended
                os.kill(on.plane.pid, signal.SIGCONT)

                step.let_go()
                ended = await finished(owner, view.id)
    assert (ended.state, ended.attempts) == ("succeeded", 1)


async def test_a_killed_keeper_is_replaced_and_the_build_keeps_its_lease(tmp_path: Path) -> None:
    async with stage(tmp_path, time_scale=SCALE) as on:
        runner = await on.join("one")
        with held_step(LINES) as step:
            async with on.client() as owner:
                slow = hello(BASE + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED)
                await _reaches(owner, view.id, "line 20")

                await _replaced_keeper(runner.pid)
                await asyncio.sleep(1.5 * LEASE_SECONDS)  # without heartbeats it would be lost

                step.let_go()
                ended = await finished(owner, view.id)
    assert (ended.state, ended.attempts) == ("succeeded", 1)


async def test_a_killed_buildah_is_told_as_what_it_is(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.join("one")
        async with on.client() as owner:
            view = await submit(owner, hello(SLOW), key="slow", plan=UNCACHED)
            killing = asyncio.create_task(_kill_always(view.id))
            ended = await finished(owner, view.id, within=2 * PATIENCE_SECONDS)
            killing.cancel()
    # It is tried again: the build is not at fault. But not for ever.
    assert ended.state == "failed"
    assert ended.result is not None
    assert ended.result.failure is not None
    assert ended.result.failure.cause == "runner"


async def test_a_build_over_which_a_runner_broke_is_built_here(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.join("one")
        with held_step(LINES) as step:
            async with on.client() as owner:
                slow = hello(BASE + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED)
                await _reaches(owner, view.id, "line 20")
                _kill(view.id)

                async def elsewhere() -> bool:
                    return (await owner.build(view.id)).runner != "one" and step.is_running

                await eventually(elsewhere, within=PATIENCE_SECONDS)
                step.let_go()
                ended = await finished(owner, view.id)
    assert (ended.state, ended.runner) == ("succeeded", "here")
    assert (ended.why_here or "").startswith("one could not build it: buildah ended with code ")


async def _kill_always(build_id: str) -> None:
    while True:
        _kill(build_id)
        await asyncio.sleep(0.5)


def _kill(build_id: str) -> None:
    for pid in _processes_of(build_id):
        # The first one may take the others with it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(900)  # thirty builds
async def test_thirty_cancels_at_random_moments_leave_nothing(tmp_path: Path) -> None:
    rng = random.Random(30)
    async with stage(tmp_path) as on:
        await on.join("one")
        async with on.client() as owner:
            context = hello(SLOW)
            for number in range(30):
                view = await submit(owner, context, key=f"key-{number}", plan=UNCACHED)
                await asyncio.sleep(rng.uniform(0, 1.5))
                await owner.cancel(view.id, CancelRequest())
                ended = await finished(owner, view.id)
                assert ended.state == "cancelled"
                if ended.attempts:
                    _check_proof(ended)
                assert _processes_of(view.id) == []
                assert _traces_of(view.id) == []


def _check_proof(view: BuildView) -> None:
    assert view.result is not None
    assert view.result.stop_proof is not None
    assert view.result.stop_proof.clean, view.result.stop_proof


async def test_a_context_for_which_its_runner_has_no_room_is_told_as_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "one", "size=60m"):
        async with stage(tmp_path) as on:
            await on.join("one")
            async with on.client() as owner:
                large = hello(fat=os.urandom(34_000_000))
                view = await submit(owner, large, key="large", if_nobody="wait")
                ended = await finished(owner, view.id)
    assert (ended.state, ended.attempts) == ("failed", 1)
    assert ended.result is not None
    assert ended.result.failure is not None
    assert ended.result.failure.cause == "disk-full"
    assert f" of 62.9 MB were free at {tmp_path / 'one'}/" in (ended.result.failure.detail or "")


async def test_a_truncated_context_never_builds(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.join("one")
        async with on.client() as owner:
            good = hello()
            view = await submit(owner, good, key="good")
            assert (await finished(owner, view.id)).state == "succeeded"
            (content,) = (tmp_path / "data" / "contexts").iterdir()
            content.write_bytes(content.read_bytes()[:-100] + bytes(100))

            broken = await submit(owner, good, key="broken")
            ended = await finished(owner, broken.id)
    assert ended.state == "failed"
    assert ended.result is not None
    assert ended.result.failure is not None
    assert ended.result.failure.cause == "integrity"


async def test_a_line_of_ten_megabytes_does_not_stop_a_build(tmp_path: Path) -> None:
    long = "RUN head -c 10000000 /dev/zero | tr '\\0' x; echo; echo the end\n"
    dockerfile = "\n".join([*SLOW.splitlines()[:3], long])
    async with stage(tmp_path) as on:
        await on.join("one")
        async with on.client() as owner:
            view = await submit(owner, hello(dockerfile), key="long", plan=UNCACHED)
            ended = await finished(owner, view.id)
            log = await owner.log(view.id)
    assert (ended.state, ended.log_complete) == ("succeeded", True)
    assert log.count(b"x") >= 10_000_000
    assert b"the end" in log
    assert max(map(len, log.split(b"\n"))) <= 64 * 1024


async def test_a_context_that_leaves_its_root_is_refused(tmp_path: Path) -> None:
    context = described({"Dockerfile": b"FROM scratch\n", "../../escaped": b"x"})
    async with stage(tmp_path) as on, on.client() as owner:
        with pytest.raises(Invalid, match="leaves the context"):
            await upload(owner, "hello", context)


async def test_a_runner_told_to_stop_finishes_its_build_first(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        runner = await on.join("one")
        with held_step(LINES) as step:
            async with on.client() as owner:
                slow = hello(BASE + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED)
                await _reaches(owner, view.id, "line 20")

                stopping = asyncio.create_task(runner.stop(within=PATIENCE_SECONDS))
                await eventually(_says(on, "runner.draining"), within=PATIENCE_SECONDS)
                step.let_go()
                code = await stopping

                ended = await owner.build(view.id)
    assert (code, ended.state, ended.attempts) == (0, "succeeded", 1)


async def _reaches(owner: RouterClient, build_id: str, text: str) -> None:
    """Wait until a build has written something."""

    async def written() -> bool:
        log = await owner.log(build_id)
        return text.encode() in log

    await eventually(written, within=PATIENCE_SECONDS, what=f"{build_id} writes {text!r}")


async def _why_again(owner: RouterClient, build_id: str) -> list[str]:
    """Return why a build had to be begun anew, each time until now."""
    why = []
    async for event in owner.events(build_id):
        if isinstance(event, Requeued):
            why.append(event.reason)
        elif isinstance(event, Started) and why:
            return why
    raise AssertionError(f"{build_id} was not begun anew")


def _says(on: Stage, word: str) -> Callable[[], Awaitable[bool]]:
    async def says() -> bool:
        return word in on.logs()

    return says


def _processes_of(build_id: str) -> list[int]:
    """Return the live processes in any cgroup of a build."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    inside = [pid for pid in pids if f"/{build_id}." in said_of(pid, "cgroup")]
    return [pid for pid in inside if not is_gone(pid)]


def _traces_of(build_id: str) -> list[str]:
    """Return cgroups and mounts that still name a build."""
    cgroups = glob.glob(f"/sys/fs/cgroup/*/pierhead/{build_id}.*")
    mounts = re.findall(rf"\S*{build_id}\S*", Path("/proc/mounts").read_text())
    return cgroups + mounts


def _gone(pids: list[int]) -> Callable[[], Awaitable[bool]]:
    async def gone() -> bool:
        return all(is_gone(pid) for pid in pids)

    return gone


def _keeper(runner: int) -> int | None:
    """Return the keeper of a runner, while there is one."""
    children = map(int, words_in(Path(f"/proc/{runner}/task/{runner}/children")).split())
    living = (child for child in children if not is_gone(child))
    return next((child for child in living if "keeper.py" in said_of(child, "cmdline")), None)


async def _replaced_keeper(runner: int) -> None:
    """Kill the keeper of a runner, and wait for the next one."""
    killed = _keeper(runner)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)

    async def replaced() -> bool:
        return _keeper(runner) not in {None, killed}

    await eventually(replaced, within=PATIENCE_SECONDS, what="another keeper is there")


async def _frozen(build_id: str) -> bool:
    """Say whether the steps of a build stand still, by what the kernel says of them."""
    places = glob.glob(f"/sys/fs/cgroup/freezer/pierhead/{build_id}.*/freezer.state")
    if not places:
        places = glob.glob(f"/sys/fs/cgroup/pierhead/{build_id}.*/cgroup.freeze")
    return [words_in(Path(place)).strip() in {"FROZEN", "1"} for place in places] == [True]
