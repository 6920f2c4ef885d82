"""What is read from buildah's output, however it is cut into pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.result import CacheUse
from pierhead.runner.domain.progress import LINE_BYTES_MAX, TAIL_LINES, Progress

OUTPUT = (
    b"[1/2] STEP 1/2: FROM scratch AS base\n"
    b"[1/2] STEP 2/2: COPY busybox /bin/busybox\n"
    b"--> Using cache fd307bec553\n"
    b"[2/2] STEP 1/3: FROM fd307bec553\n"
    b"[2/2] STEP 2/3: RUN make all\n"
    b"gcc main.c\r\n"
    b"caf\xff\n"
)


def read(*pieces: bytes) -> Progress:
    progress = Progress()
    for piece in pieces:
        progress.feed(piece)
    progress.finish()
    return progress


def test_steps_are_counted_and_the_last_one_is_known() -> None:
    progress = read(OUTPUT)

    assert progress.cache() == CacheUse(steps=4, cached=1)
    assert progress.step == "[2/2] 2/3 RUN make all"


def test_a_build_of_one_stage_has_no_stage_before_its_steps() -> None:
    assert read(b"STEP 6/9: RUN pnpm build\n").step == "6/9 RUN pnpm build"


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert read(OUTPUT).tail[-2:] == ["gcc main.c", "caf�"]


@given(st.lists(st.integers(0, len(OUTPUT)), max_size=8))
def test_it_does_not_matter_how_the_output_is_cut(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(OUTPUT)]
    pieces = [OUTPUT[begin:end] for begin, end in pairwise(at)]

    assert read(*pieces) == read(OUTPUT)


def test_a_line_without_end_takes_no_more_than_its_share() -> None:
    progress = Progress()
    for _ in range(100):
        progress.feed(b"x" * LINE_BYTES_MAX)
    progress.finish()

    assert [len(line) for line in progress.tail] == [1000]


def test_only_the_last_lines_are_kept() -> None:
    progress = read(b"".join(b"%d\n" % number for number in range(1000)))

    assert progress.tail == [str(number) for number in range(1000 - TAIL_LINES, 1000)]


def test_numbers_that_no_builder_prints_are_no_step() -> None:
    line = b"STEP " + b"1" * 5000 + b"/1: x"

    assert read(line + b"\n", OUTPUT).step == "[2/2] 2/3 RUN make all"
    assert read(OUTPUT, line + b"\n").cache() == CacheUse(steps=4, cached=1)
