"""One virtual clock, and the chance that decides what goes wrong."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Scheduler:
    """The only clock: runs what is due, in order of time and then of planning."""

    def __init__(self) -> None:
        self.time = EPOCH
        self.steps = 0
        self._heap: list[tuple[datetime, int, Callable[[], object]]] = []
        self._tie = itertools.count()

    def now(self) -> datetime:
        return self.time

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        assert seconds >= 0
        due = self.time + timedelta(seconds=seconds)
        heapq.heappush(self._heap, (due, next(self._tie), action))

    def run_until(self, end: datetime, done: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= end and not done():
            self.time, _, action = heapq.heappop(self._heap)
            action()
            self.steps += 1


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How hostile a run is. The default is calm."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_seconds: float = 0.02  # mean
    straggle: float = 0.0  # chance of a message that is late by up to half a minute
    runner_crash: float = 0.0  # for each turn of a runner
    runner_freeze: float = 0.0
    runner_drain: float = 0.0
    runner_break: float = 0.0  # for each build: it breaks the runner, which gives it back
    runner_cut_off: float = 0.0  # it goes on, and nothing reaches it or comes from it
    router_crash: float = 0.0  # after a commit, before the answer
    router_down_seconds: float = 1.0
    clock_rates: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def draw(cls, chance: Random) -> "Faults":
        return cls(
            loss=chance.choice([0, 0, 0.05, 0.3]),
            duplicate=chance.choice([0, 0.05, 0.3]),
            delay_seconds=chance.choice([0.02, 0.2, 1]),
            straggle=chance.choice([0, 0, 0.05, 0.2]),
            runner_crash=chance.choice([0, 0, 0.02, 0.08]),
            runner_freeze=chance.choice([0, 0, 0.02, 0.05]),
            runner_cut_off=chance.choice([0, 0.02, 0.05]),
            runner_drain=chance.choice([0, 0, 0.02]),
            runner_break=chance.choice([0, 0, 0.1, 0.7]),
            router_crash=chance.choice([0, 0, 0.01, 0.05]),
            router_down_seconds=chance.choice([1, 10, 45]),
            clock_rates=chance.choice([(1.0, 1.0), (0.9, 1.1)]),
        )
