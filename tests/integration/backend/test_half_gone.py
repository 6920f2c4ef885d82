"""What is taken away under a build is no failure of the build, however little of it is gone."""

import asyncio
import shutil
from pathlib import Path

import pytest

from pierhead.runner.ports import Broken, BuilderLostError, Built
from tests.held_step import HeldStep, held_step
from tests.integration.backend.conftest import Attempt, Bench

DEEP = "COPY Dockerfile /deep/er/file\n"


def waits(step: HeldStep, then: str = "true") -> str:
    *shell, script = step.words
    return f"RUN {' '.join(shell)} '{script}'; {then}\n"


async def failed(attempt: Attempt, step: HeldStep, *lost: Path | str) -> Built | Broken:
    """Build; take things away while the step waits, and let it go on."""
    building = asyncio.create_task(attempt.run())
    while not step.is_running and not building.done():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    for what in lost:
        found = [what] if isinstance(what, Path) else list(attempt.order.work.parents[1].glob(what))
        assert found, what
        for path in found:
            path.unlink() if path.is_file() else shutil.rmtree(path)
    step.let_go()
    return await building


@pytest.mark.parametrize(
    "lost",
    [
        "state/slot-0/web/storage/overlay/*/diff/deep/er/file",  # one file of a layer
        "state/slot-0/web/storage/overlay/*/diff/deep",
        "state/slot-0/web/storage/overlay-layers/layers.json",
        "state/slot-0/web/tmp",
        "work/*/notes",
    ],
)
async def test_a_step_that_fails_when_something_below_it_is_gone_does_not_fail_by_itself(
    bench: Bench, lost: str
) -> None:
    with held_step() as step:
        attempt = bench.attempt(DEEP + waits(step, "cat /deep/er/file; exit 1"))

        with pytest.raises(BuilderLostError, match="removed under the build"):
            await failed(attempt, step, lost)

    assert (await attempt.stop()).clean


async def test_a_file_of_the_context_that_goes_under_the_build_was_not_left_out_by_anybody(
    bench: Bench,
) -> None:
    with held_step() as step:
        attempt = bench.attempt(waits(step) + "COPY late/file /file\n")
        late = attempt.order.context / "late"
        late.mkdir()
        (late / "file").touch()

        with pytest.raises(BuilderLostError, match="files of the runner were removed"):
            await failed(attempt, step, late / "file")

    assert (await attempt.stop()).clean


async def test_a_step_that_removes_all_it_sees_and_fails_does_so_by_itself(bench: Bench) -> None:
    steps = (
        "RUN mkdir -p /mine/deep && touch /mine/deep/file\n"
        "RUN --mount=type=bind,target=/context,rw --mount=type=cache,target=/cache "
        "touch /cache/x /context/x; rm -rf /deep /mine /cache/x /context/* /var; exit 3\n"
    )

    broken = await bench.attempt(DEEP + steps).run()

    assert isinstance(broken, Broken)
    assert (broken.failure.exit_code, broken.failure.fault) == (3, "build")
    assert (await bench.attempts[0].stop()).clean
