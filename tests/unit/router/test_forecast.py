"""When a build that waits is likely to begin: a table of queues, and what holds of any queue."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.runner import Capabilities
from pierhead.router.domain.forecast import Queued, Running, forecast, usual
from pierhead.router.domain.matching import RunnerFacts, Wanted

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ABLE = Capabilities(
    platforms=("linux/amd64",),
    backend="buildah",
    isolation="full",
    networks=("default", "none"),
    cpus=2,
    memory_bytes=2**30,
    slots=1,
)
MINUTE = timedelta(minutes=1)


def runner(
    name: str = "desktop", *, slots: int = 1, platform: str = "linux/amd64", **facts: object
) -> RunnerFacts:
    able = msgspec.structs.replace(ABLE, slots=slots, platforms=(platform,))
    return RunnerFacts(name=name, **{"capabilities": able, **facts})  # type: ignore[arg-type]


def running(
    name: str = "desktop",
    *,
    since: float = 0,
    of: timedelta | None = MINUTE,
    stopping: bool = False,
) -> Running:
    began = NOW - timedelta(seconds=since)
    return Running(runner=name, since=began, usual=of, stopping=stopping)


def queued(number: int, *, of: timedelta | None = MINUTE, **wanted: object) -> Queued:
    wish = Wanted(build_id=f"b_{number}", sequence=number, **wanted)  # type: ignore[arg-type]
    return Queued(wanted=wish, usual=of)


def seconds(
    queue: Sequence[Queued], runners: Sequence[RunnerFacts], busy: Sequence[Running] = ()
) -> list[float | None]:
    begins = forecast(queue, runners, busy, now=NOW)
    each = [begins[build.wanted.build_id] for build in queue]
    return [one.total_seconds() if one is not None else None for one in each]


ARM = "linux/arm64"
TWO = (queued(1), queued(2))


@pytest.mark.parametrize(
    ("queue", "runners", "busy", "expected"),
    [
        pytest.param(TWO, [runner()], [], [0, 60], id="the first begins now, the next after it"),
        pytest.param(TWO, [runner()], [running(since=20)], [40, 100], id="behind one that runs"),
        pytest.param(TWO, [runner(slots=2)], [running(since=20)], [0, 40], id="a place is free"),
        pytest.param(
            TWO,
            [runner(), runner("pi")],
            [running(since=50), running("pi", since=10)],
            [12.5, 50],
            id="each place as it comes free",
        ),
        pytest.param(
            (queued(1, of=timedelta(hours=1)), queued(2)),
            [runner()],
            [],
            [0, 3600],
            id="a long one",
        ),
        pytest.param(
            (queued(1, platform=ARM), queued(2, platform=ARM), queued(3)),
            [runner(), runner("pi", platform=ARM)],
            [running(since=20), running("pi")],
            [60, 120, 40],
            id="those for others take no place",
        ),
        pytest.param(
            (queued(1, on=("pi",)), queued(2)),
            [runner(), runner("pi")],
            [running(since=20), running("pi", since=30)],
            [30, 40],
            id="asked for by name",
        ),
        pytest.param(TWO, [runner()], [running(since=100)], [25, 85], id="longer than usual"),
        pytest.param(
            TWO,
            [runner()],
            [running(since=181)],
            [None, None],
            id="of another kind",
        ),
        pytest.param(TWO, [runner()], [running(since=-5)], [60, 120], id="begun by another clock"),
        pytest.param(TWO, [runner()], [running(stopping=True)], [5, 65], id="one is stopping"),
        pytest.param(
            TWO,
            [runner()],
            [running(since=10), running(since=30)],
            [50, 110],
            id="more run than may: both have to go first",
        ),
        pytest.param(TWO, [], [], [None, None], id="no runner"),
        pytest.param(TWO, [runner(online=False)], [], [None, None], id="offline"),
        pytest.param(TWO, [runner(slots=0)], [], [None, None], id="unable"),
        pytest.param(TWO, [runner(capabilities=None)], [], [None, None], id="never seen"),
        pytest.param(TWO, [runner(refuses_since=NOW)], [], [None, None], id="its disk is full"),
        pytest.param((queued(1, platform=ARM),), [runner()], [], [None], id="nobody could"),
        pytest.param(TWO, [runner(here=True)], [], [None, None], id="here may not"),
        pytest.param(
            (queued(1, here_allowed=True),) * 1, [runner(here=True)], [], [0], id="here may"
        ),
        pytest.param(
            (queued(1, of=None), queued(2, of=None)), [runner()], [], [0, None], id="nothing known"
        ),
        pytest.param(
            TWO, [runner()], [running(of=None)], [None, None], id="nothing known of what runs"
        ),
    ],
)
def test_when_builds_begin(
    queue: Sequence[Queued],
    runners: Sequence[RunnerFacts],
    busy: Sequence[Running],
    expected: list[float | None],
) -> None:
    assert seconds(queue, runners, busy) == expected


def test_whoever_would_emulate_takes_no_build_of_one_that_need_not() -> None:
    able = msgspec.structs.replace(ABLE, emulated=(ARM,))
    native = runner("pi", platform=ARM)
    emulating = runner("big", capabilities=able)

    assert seconds([queued(1, platform=ARM)], [emulating, native], [running("pi")]) == [60]
    assert seconds([queued(1, platform=ARM)], [emulating], []) == [0]


@pytest.mark.parametrize(
    ("durations", "expected"),
    [([], None), ([7], 7), ([1, 900, 3], 3), ([4, 2], 4)],
)
def test_usual_is_what_lies_in_the_middle(durations: list[int], expected: int | None) -> None:
    found = usual([timedelta(seconds=each) for each in durations])
    assert found == (timedelta(seconds=expected) if expected is not None else None)


LASTS = st.integers(1, 5000).map(lambda n: timedelta(seconds=n))
PLATFORMS = st.sampled_from(["linux/amd64", ARM])
RUNNERS = st.lists(
    st.builds(lambda slots, platform: (slots, platform), st.integers(1, 3), PLATFORMS),
    min_size=1,
    max_size=4,
).map(lambda all_: [runner(f"r{n}", slots=s, platform=p) for n, (s, p) in enumerate(all_)])
BUSY = st.lists(
    st.builds(
        lambda number, since, of: running(f"r{number}", since=since, of=of),
        st.integers(0, 3),
        st.integers(-10, 100_000),
        LASTS,
    ),
    max_size=8,
)
WISHES = st.lists(st.tuples(LASTS, st.one_of(st.none(), PLATFORMS)), max_size=8)


def unknown_is_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def queue_of(wishes: Sequence[tuple[timedelta, str | None]]) -> list[Queued]:
    return [queued(n, of=of, platform=platform) for n, (of, platform) in enumerate(wishes, 1)]


@given(WISHES, RUNNERS, BUSY)
def test_nobody_begins_in_the_past(
    wishes: list[tuple[timedelta, str | None]], runners: list[RunnerFacts], busy: list[Running]
) -> None:
    assert all(one is None or one >= 0 for one in seconds(queue_of(wishes), runners, busy))


@given(WISHES, RUNNERS, BUSY, st.one_of(st.none(), PLATFORMS), LASTS)
def test_one_more_ahead_makes_nothing_sooner(
    wishes: list[tuple[timedelta, str | None]],
    runners: list[RunnerFacts],
    busy: list[Running],
    wanted: str | None,
    of: timedelta,
) -> None:
    mine = (of, wanted)
    *_, alone = seconds(queue_of([mine]), runners, busy)
    *_, before = seconds(queue_of([*wishes, mine]), runners, busy)
    for one_more in (None, "linux/amd64", ARM):
        *_, after = seconds(queue_of([*wishes, (of, one_more), mine]), runners, busy)
        assert (alone is None) == (before is None) == (after is None)
        assert alone is None or alone <= before <= after  # type: ignore[operator]


@given(st.lists(LASTS, min_size=1, max_size=8), st.integers(0, 7), LASTS, RUNNERS, BUSY)
def test_where_all_may_go_anywhere_one_more_anywhere_ahead_makes_nothing_sooner(
    lasts: list[timedelta],
    at: int,
    more: timedelta,
    runners: list[RunnerFacts],
    busy: list[Running],
) -> None:
    queue = [(each, None) for each in lasts]
    longer = [*queue[: at % len(queue)], (more, None), *queue[at % len(queue) :]]

    before = seconds(queue_of(queue), runners, busy)[-1]
    after = seconds(queue_of(longer), runners, busy)[-1]

    assert unknown_is_never(before) <= unknown_is_never(after)


@given(st.integers(0, 100_000), LASTS)
def test_one_that_runs_beyond_its_time_is_never_taken_to_be_over(since: int, of: timedelta) -> None:
    (begins,) = seconds([queued(1)], [runner()], [running(since=since, of=of)])
    (later,) = seconds([queued(1)], [runner()], [running(since=since + 1, of=of)])

    assert unknown_is_never(begins) >= 1
    if since >= of.total_seconds():
        assert unknown_is_never(later) >= unknown_is_never(begins)
    assert (begins is None) == (since > 3 * of.total_seconds())
