"""Steps in a log, wherever its parts were cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.router.domain.steps import Mark, marks

LOG = (
    b"note: built here\n"
    b"[1/2] STEP 1/2: FROM scratch AS a\n"
    b"[1/2] STEP 2/2: RUN make\r\n"
    b"STEP 9/9: not a step, this is output\n"
    b"--> Using cache 4711\n"
    b"[2/2] STEP 1/1: COPY . /\n"
    b"STEP by step\n"
)


def test_each_line_of_the_builder_is_a_mark_at_its_end() -> None:
    found = marks(LOG, 0, 0)

    assert [mark.name for mark in found] == [
        "[1/2] 1/2 FROM scratch AS a",
        "[1/2] 2/2 RUN make",
        "9/9 not a step, this is output",
        None,
        "[2/2] 1/1 COPY . /",
    ]
    assert [LOG[: mark.end].count(b"\n") for mark in found] == [2, 3, 4, 5, 6]


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_however_a_log_is_cut_each_mark_is_found_once(cuts: list[int]) -> None:
    seen: list[Mark] = []
    ends = [*sorted(set(cuts)), len(LOG)]
    for before, size in zip([0, *ends], ends, strict=False):
        seen += marks(LOG[:size], 0, before)

    assert seen == list(marks(LOG, 0, 0))


@pytest.mark.parametrize("line", [b"STEP 1/2: RUN x", b" STEP 1/2: RUN x\n", b"a STEP 1/2: x\n"])
def test_a_line_without_an_end_or_a_beginning_is_none(line: bytes) -> None:
    assert marks(line, 0, 0) == []


def test_names_are_bounded_and_never_break_on_bytes() -> None:
    [mark] = marks(b"STEP 1/1: RUN \xff" + b"x" * 1000 + b"\n", 100, 100)

    assert mark.name is not None
    assert len(mark.name) == 200
    assert mark.end == 1116
