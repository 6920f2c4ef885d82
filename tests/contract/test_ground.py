"""What every ground under a runner says of itself: the folder on a disk, and the fake."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from pierhead.protocol.errors import Unavailable
from pierhead.runner.adapters.ground import LockedGround
from pierhead.runner.config import lock_file, lock_state
from pierhead.runner.ports import Ground
from pierhead.runner.testing import FakeGround
from tests.small_disk import small_disk


class Plot(ABC):
    """A ground, and what becomes of it."""

    ground: Ground

    @abstractmethod
    def fill(self) -> None:
        """Leave no room for a build."""

    @abstractmethod
    def empty(self) -> None:
        """Make room again."""

    @abstractmethod
    def take_away(self) -> None:
        """Remove the folder under the runner; another one may be in its place."""


class RealPlot(Plot):
    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        self.holder = lock_state(self._state)
        work, lock = self._state / "work", lock_file(self._state)
        self.ground = LockedGround(self._state, work, lock, self.holder)

    def fill(self) -> None:
        with (self._state / "file").open("wb") as file:
            file.write(bytes(4 * 2**20 - 64 * 1024))

    def empty(self) -> None:
        (self._state / "file").unlink()

    def take_away(self) -> None:
        lock_file(self._state).unlink()
        lock_file(self._state).touch()


class FakePlot(Plot):
    def __init__(self) -> None:
        self.ground: FakeGround = FakeGround()

    def fill(self) -> None:
        self.ground.lacking = "its disk is full: 1.0 MB of 4.0 MB are free at /work"

    def empty(self) -> None:
        self.ground.lacking = None

    def take_away(self) -> None:
        self.ground.gone = True


@pytest.fixture(params=["fake", "disk"])
def plot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plot]:
    if request.param == "fake":
        yield FakePlot()
        return
    with small_disk(tmp_path / "tiny", "size=4m") as folder:
        real = RealPlot(folder)
        yield real
        os.close(real.holder)


def test_it_lacks_nothing_until_its_disk_is_full_and_again_when_there_is_room(plot: Plot) -> None:
    assert plot.ground.lack() is None

    plot.fill()
    for _ in range(2):
        assert (plot.ground.lack() or "").startswith("its disk is full: ")

    plot.empty()
    assert plot.ground.lack() is None


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_that_is_somebody_elses_is_no_reason_to_wait_but_to_end(
    plot: Plot, *, full: bool
) -> None:
    if full:
        plot.fill()
    plot.take_away()

    for _ in range(2):
        with pytest.raises(Unavailable) as gone:
            plot.ground.lack()
        assert gone.value.problem.hint
