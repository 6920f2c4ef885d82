"""The router's services under seeded faults, against checkers that keep their own record."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .families import families
from .world import World, first_failure

ROOT = Path(__file__).resolve().parents[2]
SEEDS = int(os.environ.get("PIERHEAD_SIM_SEEDS", "200"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_build_ends_once_whatever_goes_wrong(seed: int) -> None:
    failure = first_failure([seed])

    assert failure is None, failure


def test_one_seed_gives_one_history_on_any_machine() -> None:
    """Sets and dictionaries must not decide anything: their order hangs on the hash seed."""
    program = (
        "from tests.simulation.world import World\n"
        "for seed in range(8):\n"
        "    world = World(seed); world.run(); print(world.digest())"
    )
    histories = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }

    assert len(histories) == 1
    assert len(set(histories.pop().split())) == 8


def test_the_faults_are_hard_enough_to_see_every_way_in_which_a_build_ends() -> None:
    """A simulation in which nothing goes wrong would pass, too."""
    ends: Counter[str] = Counter()
    for seed in range(60):
        world = World(seed)
        world.run()
        for whole, parts in families(world.store.ledger):
            built = [part.build.state.value == "succeeded" for part in parts]
            ends[f"all platforms {whole.build.state}"] += 1
            ends["one platform built, none shown"] += any(built) and not all(built)
            ends["a sibling was stopped"] += any(
                part.build.state.value == "cancelled" and part.build.fence > 0 for part in parts
            )
        for stored in world.store.ledger.builds_.values():
            failure = stored.envelope.failure if stored.envelope else None
            ends[failure.cause if failure else stored.build.state.value] += 1
            ends["again"] += stored.build.fence > 1
            ends["released"] += stored.build.attempts < stored.build.fence
            ends["here with a reason"] += bool(stored.here_reason)

    expected = {"succeeded", "cancelled", "command", "no-runner", "waited-too-long"}
    expected |= {f"all platforms {state}" for state in ("succeeded", "failed", "cancelled")}
    expected |= {"one platform built, none shown", "a sibling was stopped"}
    assert expected | {"runners-lost", "runner", "again", "released", "here with a reason"} <= set(
        +ends
    )
