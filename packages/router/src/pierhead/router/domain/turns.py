"""Whose turn it is: projects take turns, and within a project builds are served as they came.

The project whose last grant is longest ago is next. Before a project has a second turn every other
that waits has had one, however many builds the first one has. A grant that came to nothing was no
turn, so a build that waits again keeps its place.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class InLine(NamedTuple):
    """A build that waits, and no more of it than its place needs.

    `turn`: of its project; it rises with each grant over all projects, and 0 is none that counts.
    """

    project: str
    sequence: int
    turn: int


def in_turn(line: Iterable[InLine]) -> Sequence[str]:
    """Return the projects that wait in the order of their turns.

    Of those that had none the one whose build waits longest comes first.
    """
    first: dict[str, tuple[int, int]] = {}
    for one in line:
        known = first.setdefault(one.project, (one.turn, one.sequence))
        first[one.project] = min(known, (one.turn, one.sequence))
    return sorted(first, key=first.__getitem__)


def one_of_each(lines: Iterable[Iterator[T]], count: int) -> Sequence[T]:
    """Take one of each line after the other, again and again, at most so many."""
    return list(islice(_rounds(list(lines)), count))


def _rounds(lines: list[Iterator[T]]) -> Iterator[T]:
    while lines:
        rest = []
        for line in lines:
            for one in islice(line, 1):
                yield one
                rest.append(line)
        lines = rest


def places(line: Sequence[InLine]) -> dict[int, int]:
    """Return the place of each build by its sequence, from 1, as if any runner took any of them."""
    of: dict[str, list[int]] = {project: [] for project in in_turn(line)}
    for one in sorted(line, key=lambda one: one.sequence):
        of[one.project].append(one.sequence)
    served = one_of_each(map(iter, of.values()), len(line))
    return {sequence: place for place, sequence in enumerate(served, 1)}
