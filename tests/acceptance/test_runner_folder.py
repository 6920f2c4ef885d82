"""What becomes of builds when a runner's folder fills or goes, and how a runner is stopped."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pierhead.protocol.client.upload import upload
from pierhead.protocol.plan import Plan
from pierhead.runner.removal import remove_tree
from tests.held_step import held_step
from tests.small_disk import small_disk

from .stage import HELLO, PATIENCE_SECONDS, Stage, eventually, finished, hello, stage, submit

UNCACHED = Plan(no_cache=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Give the folder of a runner on a small disk of its own."""
    with small_disk(tmp_path / "one", "size=256m") as folder:
        yield folder


async def test_a_disk_that_fills_before_a_build_begins_costs_it_nothing(
    tmp_path: Path, small: Path
) -> None:
    async with stage(tmp_path) as on:
        await on.join("one")
        async with on.client() as owner:
            await upload(owner, "hello", hello())
            # The runner's request is held, and says that it has room.
            with (small / "ballast").open("wb") as ballast:
                ballast.write(bytes(220 * 2**20))
            view = await submit(owner, hello(), key="full", if_nobody="wait")

            async def waits_for_room() -> bool:
                why = await owner.why(view.id)
                return any("its disk is full" in said.reason for said in why.rejections)

            await eventually(waits_for_room, within=PATIENCE_SECONDS)
            assert (await owner.build(view.id)).state == "queued"

            (small / "ballast").unlink()
            ended = await finished(owner, view.id)

    assert (ended.state, ended.attempts) == ("succeeded", 1), ended


def place(on: Stage) -> dict[str, str]:
    return {"PIERHEAD_RUNNER_STATE": str(on.folder / "one")}


async def remove_at_once(on: Stage, name: str) -> None:
    """Remove a folder under its runner, which makes no part of it anew meanwhile."""
    gone = on.folder / f"gone-{name.replace('/', '-')}"
    (on.folder / name).rename(gone)
    await asyncio.to_thread(remove_tree, gone)


async def test_a_runner_in_the_foreground_is_stopped_by_the_command(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        runner = await on.join("one")
        shown = on.run("runner", "show", **place(on))
        with held_step() as step:
            async with on.client() as owner:
                slow = hello(HELLO + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED, if_nobody="wait")

                async def begun() -> bool:
                    return step.is_running

                async def told() -> bool:
                    return "runner.draining" in on.logs()

                await eventually(begun, within=PATIENCE_SECONDS)
                stopping = asyncio.create_task(
                    asyncio.to_thread(on.run, "runner", "stop", **place(on))
                )
                await eventually(told, within=PATIENCE_SECONDS)
                step.let_go()
                stopped = await stopping
                ended = await owner.build(view.id)
        process, runner.process = runner.process, None
        assert process is not None
        pid, code = process.pid, process.wait(PATIENCE_SECONDS)
        again = on.run("runner", "stop", **place(on))
        stopped_show = on.run("runner", "show", **place(on))

    assert f"at work: process {pid}\n" in shown.stdout
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stderr == (
        f"process {pid} finishes what it builds, for 90 s at most\n"
        "stopped; this machine still belongs to its control plane: pierhead runner start\n"
    )
    assert (code, ended.state, ended.attempts) == (0, "succeeded", 1)
    assert again.returncode == 1
    assert again.stderr == (
        f"error: no runner is at work here ({on.folder / 'one'})\n\nhint: pierhead runner show\n"
    )
    assert "stopped: pierhead runner start\n" in stopped_show.stdout


async def test_a_runner_whose_folder_is_removed_ends_and_says_how_to_join_again(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        runner = await on.join("one")
        await remove_at_once(on, "one")
        process, runner.process = runner.process, None
        assert process is not None
        code = await asyncio.to_thread(process.wait, PATIENCE_SECONDS)
        again = on.run("runner", "start", **place(on))

    said = (on.folder / "one.log").read_text()
    assert code == 78
    assert f"error: the folder of this runner was removed while it worked: {on.folder}/one" in said
    assert "hint: on the control plane: pierhead add NAME --builds, then here: " in said
    assert "Traceback" not in said
    assert again.stderr.startswith("error: this machine has not joined a control plane")


async def test_what_is_removed_below_a_runners_folder_is_made_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.join("one")
        async with on.client() as owner:
            first = await finished(owner, (await submit(owner, hello(), key="first")).id)

            async def cleared_away() -> bool:
                return "build.end" in on.logs()

            await eventually(cleared_away, within=PATIENCE_SECONDS)
            for folder in ("work", "slot-0", "attempts"):
                await remove_at_once(on, f"one/{folder}")
            view = await submit(owner, hello(), key="second", plan=UNCACHED, if_nobody="wait")
            second = await finished(owner, view.id)

    assert (first.state, first.runner) == ("succeeded", "one")
    assert (second.state, second.runner, second.attempts) == ("succeeded", "one", 1)
    assert "Traceback" not in (on.folder / "one.log").read_text()


@pytest.mark.parametrize("folder", ["work", "slot-0"])
async def test_a_build_whose_folder_is_removed_is_built_again(tmp_path: Path, folder: str) -> None:
    async with stage(tmp_path) as on:
        await on.join("one")
        with held_step() as step:
            async with on.client() as owner:
                slow = hello(HELLO + step.line)
                view = await submit(owner, slow, key="slow", plan=UNCACHED, if_nobody="wait")

                async def begun() -> bool:
                    return step.is_running

                async def ended_again() -> bool:
                    seen = await owner.build(view.id)
                    if seen.fence > 1:
                        step.let_go()
                    return seen.finished_at is not None

                await eventually(begun, within=PATIENCE_SECONDS)
                await asyncio.to_thread(remove_tree, on.folder / "one" / folder)
                await eventually(ended_again, within=2 * PATIENCE_SECONDS)
                ended = await owner.build(view.id)

    assert (ended.state, ended.runner, ended.attempts) == ("succeeded", "one", 1), ended
    assert ended.fence == 2
    assert "Traceback" not in (on.folder / "one.log").read_text()
