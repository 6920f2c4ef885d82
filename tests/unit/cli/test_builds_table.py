"""The table of builds: what each is for, how it stands, where, and for how long."""

from datetime import UTC, datetime

import pytest

from pierhead.protocol.build import BuildView
from pierhead.protocol.cli.speak import about, columns, duration, in_line
from pierhead.protocol.ids import BuildId
from pierhead.protocol.result import Envelope, Failure
from pierhead.router.cli.builds import row_of

NOW = datetime(2026, 1, 1, 12, 0, 45, tzinfo=UTC)
FAILED = Envelope(outcome="failed", failure=Failure(cause="time", message="too long"))


def view(**facts: object) -> BuildView:
    made = "2026-01-01T12:00:00.000Z"
    return BuildView(id=BuildId("b_1"), project="web", created_at=made, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "row"),
    [
        (view(state="queued", position=2), ("-", "waiting, 2nd", "-")),
        (view(state="queued", position=11, tags=("1.2",)), ("1.2", "waiting, 11th", "-")),
        (
            view(state="queued", position=2, expected_wait_seconds=38, waits_for="desktop is busy"),
            ("-", "waiting, 2nd, about 40 s", "-"),
        ),
        (
            view(state="queued", position=1, waits_for="desktop is offline"),
            ("-", "waiting, 1st: desktop is offline", "-"),
        ),
        (view(state="queued", expected_wait_seconds=200), ("-", "waiting, about 3 min", "-")),
        (view(state="queued"), ("-", "waiting", "-")),
        (
            view(state="leased", phase="building", runner="desktop", supersedes="web:pr-42"),
            ("pr-42", "building", "desktop"),
        ),
        (
            view(state="leased", phase="building", runner="d", step="[2/3] 6/9 RUN pnpm build"),
            ("-", "building [2/3] 6/9", "d"),
        ),
        (view(state="leased", phase="pushing", runner="d", step="1/1 x"), ("-", "pushing", "d")),
        (view(state="leased", cancel_requested=True, runner="d"), ("-", "cancelling", "d")),
        (
            view(state="cancelled", cancel_reason="replaced by b_2", supersedes="shared"),
            ("shared", "cancelled: replaced", "-"),
        ),
        (view(state="failed", result=FAILED, runner="d"), ("-", "failed: time", "d")),
        (view(state="succeeded", runner="d"), ("-", "succeeded", "d")),
    ],
)
def test_a_row_says_for_what_how_and_where(one: BuildView, row: tuple[str, str, str]) -> None:
    assert row_of(one, NOW) == ("b_1", "web", *row, "45 s")


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    assert list(columns([("ID", "STATE"), ("b_123456", "x")])) == ["ID        STATE", "b_123456  x"]


@pytest.mark.parametrize(
    ("seconds", "text", "rough"),
    [
        (0.04, "0.0 s", "0 s"),
        (59.9, "59.9 s", "59 s"),
        (61, "1 min 1 s", "1 min"),
        (7800, "2 h 10 min", "2 h 10 min"),
        (49 * 3600, "2 days", "2 days"),
    ],
)
def test_durations_are_as_exact_as_people_need_them(seconds: float, text: str, rough: str) -> None:
    assert (duration(seconds), duration(seconds, whole=True)) == (text, rough)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "a few seconds"),
        (7, "a few seconds"),
        (8, "about 10 s"),
        (44, "about 40 s"),
        (94, "about 90 s"),
        (95, "about 2 min"),
        (3569, "about 59 min"),
        (3570, "about 1 h"),
        (3600 * 5.6, "about 6 h"),
        (3600 * 24 * 9, "about 9 days"),
    ],
)
def test_a_guess_is_as_exact_as_a_guess_can_be(seconds: float, text: str) -> None:
    assert about(int(seconds)) == text


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ((2, 38, "desktop is busy"), "2nd, about 40 s: desktop is busy"),
        ((21, None, "desktop is offline"), "21st: desktop is offline"),
        ((None, None, "desktop is offline"), "desktop is offline"),
        ((None, 38), "about 40 s"),
        ((None, None), ""),
    ],
)
def test_whoever_waits_is_told_what_is_known(
    known: tuple[int | None, int | None], text: str
) -> None:
    assert in_line(*known) == text
