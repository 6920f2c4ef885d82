"""What a benchmark gives: figures, and how they are made from samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number and the goal that it must not exceed."""

    metric: str
    value: float
    goal: float

    def line(self, name: str) -> str:
        """Return the line that is compared between runs."""
        verdict = "ok" if self.value <= self.goal else "short"
        return f"bench {name} {self.metric} {self.value:.2f} {self.goal:.2f} {verdict}"


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that so many percent of all do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(name: str, seconds: Sequence[float]) -> str:
    """Describe samples of a duration, for the run's story."""
    shown = [percentile(seconds, percent) * 1000 for percent in (50, 90, 99, 100)]
    p50, p90, p99, most = (f"{value:.1f}" for value in shown)
    return f"{name}: {len(seconds)} x, p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, max {most} ms"
