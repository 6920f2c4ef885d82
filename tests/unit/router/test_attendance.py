"""Who is waited for by a control plane that is there for now, and for how long."""

import asyncio
from pathlib import Path

from pierhead.router.attendance import is_used, looking_on, until_unused, using


async def goes_on(waiting: "asyncio.Task[None]") -> bool:
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    return not done


async def ends(waiting: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(25):
        await waiting


class Builds:
    """Whether anything is built."""

    def __init__(self, *, open_: bool) -> None:
        self.open = open_

    async def __call__(self) -> bool:
        return self.open


async def test_it_ends_when_nobody_uses_it_and_takes_nobody_any_more(tmp_path: Path) -> None:
    with using(tmp_path) as one:
        assert one
        waiting = asyncio.create_task(until_unused(tmp_path, Builds(open_=False)))
        assert await goes_on(waiting)
    await ends(waiting)

    with using(tmp_path) as late:
        assert not late
    assert is_used(tmp_path)  # by its own last moments


async def test_whoever_looks_on_keeps_it_while_anything_is_built_and_then_for_a_moment(
    tmp_path: Path,
) -> None:
    builds = Builds(open_=True)
    async with looking_on(tmp_path):
        assert is_used(tmp_path)
        waiting = asyncio.create_task(until_unused(tmp_path, builds, linger_seconds=0.2))
        assert await goes_on(waiting)
        builds.open = False
        await ends(waiting)


async def test_whoever_does_not_look_on_any_more_keeps_nothing(tmp_path: Path) -> None:
    async with looking_on(tmp_path):
        waiting = asyncio.create_task(until_unused(tmp_path, Builds(open_=True)))
        assert await goes_on(waiting)
    await ends(waiting)


async def test_others_may_begin_while_somebody_looks_on(tmp_path: Path) -> None:
    async with looking_on(tmp_path):
        waiting = asyncio.create_task(until_unused(tmp_path, Builds(open_=True)))
        await asyncio.sleep(0.3)
        with using(tmp_path) as newcomer:
            assert newcomer
    waiting.cancel()
