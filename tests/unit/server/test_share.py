"""What one owner's unfinished uploads may hold: the rule, without a disk."""

import pytest

from pierhead.protocol.errors import Unavailable
from pierhead.server.share import Held, Share

NOW = 10_000.0
DISK = 10**12
SHARE = Share(uploads=3, size_bytes=100, idle_seconds=60)


def held(*sizes_and_ages: tuple[int, float]) -> list[Held]:
    return [Held(f"u_{n}", size, NOW - age) for n, (size, age) in enumerate(sizes_and_ages)]


def test_within_the_share_nothing_goes_however_old() -> None:
    found = held((50, 9000), (50, 9000), (0, 0))
    assert SHARE.given_up(found, now=NOW, disk_bytes=DISK) == []


def test_of_too_many_those_go_first_that_nobody_went_on_with_for_longest() -> None:
    found = held((1, 61), (1, 900), (1, 5), (1, 61), (1, 0))
    assert SHARE.given_up(found, now=NOW, disk_bytes=DISK) == ["u_1", "u_0"]


def test_of_too_many_bytes_only_so_many_go_as_have_to() -> None:
    found = held((60, 70), (60, 80), (30, 0))
    assert SHARE.given_up(found, now=NOW, disk_bytes=DISK) == ["u_1"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (held((1, 5), (1, 5), (1, 60), (1, 0)), "3 uploads of this repository are under way"),
        (held((60, 5), (60, 0)), "that are under way have 120 B"),
    ],
)
def test_what_comes_in_now_is_never_given_up_for_another(found: list[Held], said: str) -> None:
    with pytest.raises(Unavailable) as refused:
        SHARE.given_up(found, now=NOW, disk_bytes=DISK)
    problem = refused.value.problem
    assert (problem.slug, problem.retry_after_ms) == ("rate-limited", 10_000)
    assert said in problem.detail
    assert problem.hint == "end some of them, or give them up; then push again"


def test_one_alone_may_be_larger_than_all_may_be_together() -> None:
    assert SHARE.given_up(held((500, 0)), now=NOW, disk_bytes=DISK) == []


def test_on_a_small_disk_a_share_is_half_of_it() -> None:
    found = held((30, 70), (30, 0))
    assert SHARE.given_up(found, now=NOW, disk_bytes=100) == ["u_0"]
    assert SHARE.given_up(found, now=NOW, disk_bytes=120) == []
