"""Whose turn it is: a table, and what holds for every queue."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.router.domain.turns import InLine, in_turn, one_of_each, places

LINES = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([True, False])), max_size=40)


def line(said: str, **turns: int) -> list[InLine]:
    """`aab`: two builds of a, then one of b."""
    return [InLine(name, number, turns.get(name, 0)) for number, name in enumerate(said, 1)]


def order(queue: Sequence[InLine]) -> str:
    by = {one.sequence: one.project for one in queue}
    return "".join(by[sequence] for sequence in places(queue))


@pytest.mark.parametrize(
    ("said", "turns", "served"),
    [
        ("", {}, ""),
        ("aaa", {}, "aaa"),
        ("aaab", {}, "abaa"),
        ("aaab", {"a": 7}, "baaa"),
        ("aabbc", {"a": 3, "b": 2, "c": 1}, "cbaba"),
        ("ba", {"a": 1, "b": 2}, "ab"),  # whoever had a turn later is later, not who came later
        ("ba", {"a": 1}, "ba"),  # b never had one
        ("ab", {}, "ab"),  # none had one: as they came
    ],
)
def test_projects_take_turns(said: str, turns: dict[str, int], served: str) -> None:
    assert order(line(said, **turns)) == served


def test_a_project_whose_builds_nobody_takes_stands_in_nobodys_way() -> None:
    lines: dict[str, list[str]] = {"a": [], "b": ["b1", "b2", "b3"], "c": ["c1"]}

    assert one_of_each(map(iter, lines.values()), 3) == ["b1", "c1", "b2"]
    assert one_of_each(map(iter, lines.values()), 9) == ["b1", "c1", "b2", "b3"]
    assert one_of_each(map(iter, lines.values()), 0) == []


def test_no_more_is_looked_at_than_is_taken() -> None:
    looked: list[str] = []

    def fitting(name: str) -> Iterator[str]:
        looked.append(name)
        yield name

    assert one_of_each(map(fitting, "abc"), 1) == ["a"]
    assert looked == ["a"]


@given(LINES)
def test_everybody_who_waits_is_served_once_and_within_a_project_in_order(
    said: list[tuple[str, bool]],
) -> None:
    queue = line("".join(name for name, _ in said))
    found = places(queue)

    assert sorted(found) == [one.sequence for one in queue]
    assert sorted(found.values()) == list(range(1, len(queue) + 1))
    for project in in_turn(queue):
        mine = [found[one.sequence] for one in queue if one.project == project]
        assert mine == sorted(mine)


@given(LINES, st.permutations("abcde"))
def test_granting_one_by_one_nobody_waits_for_more_grants_than_projects_wait(
    said: list[tuple[str, bool]], had: Sequence[str]
) -> None:
    """Builds come while others are granted; the places that were told hold until some come."""
    turns = {name: number for number, name in enumerate(had)}
    waiting: list[InLine] = []
    passed: dict[str, set[str]] = {}

    def grant() -> None:
        first, *_ = places(waiting)
        mine = next(one for one in waiting if one.sequence == first)
        assert in_turn(waiting)[0] == mine.project
        turns[mine.project] = max(turns.values()) + 1
        waiting.remove(mine)
        passed.pop(mine.project, None)
        for project in in_turn(waiting):
            others = passed.setdefault(project, set())
            assert mine.project == project or mine.project not in others
            others.add(mine.project)
        waiting[:] = [one._replace(turn=turns[one.project]) for one in waiting]

    for number, (name, grants) in enumerate(said, 1):
        waiting.append(InLine(name, number, turns[name]))
        if grants:
            grant()
    while waiting:
        told = list(places(waiting))
        grant()
        assert list(places(waiting)) == told[1:]
