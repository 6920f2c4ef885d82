"""A build that is frozen can be ended, and no step can freeze itself."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from pierhead.runner.adapters import cgroup as cgroups
from tests.integration.backend.conftest import Bench
from tests.sight import all_below

# What each kind of cgroup calls it.
FROZEN = {"freezer.state": "FROZEN", "cgroup.freeze": "1"}
FREEZE = (
    "RUN for state in $(find /sys/fs/cgroup -name freezer.state -o -name cgroup.freeze); do"
    " echo FROZEN > $state; echo 1 > $state; mkdir ${state%/*}/sub; done; echo went on\n"
)


async def test_a_step_cannot_freeze_itself(bench: Bench) -> None:
    log = await bench.log_of(FREEZE)

    assert "went on" in log
    assert "Read-only file system" in log or "/sys/fs/cgroup" not in log


def _states(name: str) -> Iterator[tuple[Path, str]]:
    for folder in cgroups.cgroup_of(name).places:
        for path in all_below(folder):
            if path.name in FROZEN:
                yield path, FROZEN[path.name]


async def test_what_is_frozen_is_ended_all_the_same(bench: Bench) -> None:
    attempt = bench.attempt("RUN echo sleeps; sleep 1000\n")
    running = asyncio.create_task(attempt.run())
    await attempt.until(b"sleeps")
    frozen = [state.write_text(word) for state, word in _states(attempt.order.name)]
    assert frozen

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    proof = await attempt.stop()

    assert proof.clean, proof


async def test_a_cgroup_that_stayed_is_looked_at_again_at_the_next_start(bench: Bench) -> None:
    attempt = bench.attempt("RUN true\n")
    await attempt.run()
    assert (await attempt.stop()).clean
    stays = cgroups.cgroup_of(attempt.order.name).places[0] / "run"
    mark = bench.folder / "state" / "attempts" / attempt.order.name
    stays.mkdir(parents=True)
    mark.write_text("slot-0/web")

    assert (await bench.backend.sweep()).clean

    assert not stays.exists()
    assert not mark.exists()
