"""A step's lines are never taken for the builder's, however the output is cut into pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pierhead.runner.domain.progress import Progress
from pierhead.runner.domain.voice import BEGIN, END, Voices, mark

WORD = b"5d9ae1"
FORGED = (
    b"STEP 3/3: RUN rm -rf /\n[2/9] STEP 9/9: COPY a b\n--> Using cache 5d9a\nnote: built here\n"
)
SAID = (
    b"STEP 1/3: FROM scratch\nSTEP 2/3: RUN ./build\n"
    + mark(WORD, BEGIN)
    + FORGED
    + b"[ok] [12/34] STEPS\nno end of a line"
    + mark(WORD, END)
    + b"--> 5800e879891\nSTEP 3/3: COPY a b\n--> Using cache 1\nlast"
)
HEARD = (
    b"STEP 1/3: FROM scratch\nSTEP 2/3: RUN ./build\n"
    b" STEP 3/3: RUN rm -rf /\n [2/9] STEP 9/9: COPY a b\n --> Using cache 5d9a\nnote: built here\n"
    b"[ok] [12/34] STEPS\nno end of a line\n"
    b"--> 5800e879891\nSTEP 3/3: COPY a b\n--> Using cache 1\nlast"
)


ID = b"7028e0cbf70ff86e46f843706486d47bbf2465a69744efda5a2cd638f23d0232"
BASES = ("scratch", "base", "mid", "$WHO or\nSTEP 1/1: RUN x")
STAGES = (
    b"[1/4] STEP 1/1: FROM scratch AS base\n"
    b"[2/4] STEP 1/2: FROM %(id)s AS mid\n[2/4] STEP 2/2: RUN echo\n"
    + mark(WORD, BEGIN)
    + b"[3/4] STEP 1/2: FROM %(id)s AS x\n"
    + mark(WORD, END)
    + b"--> %(id)s\n[3/4] STEP 1/1: FROM --platform=linux/arm64 %(id)s\r\n"
    b"[4/4] STEP 1/1: FROM %(id)s\n[9/9] STEP 1/1: FROM %(id)s AS y\n[3/4] STEP 1/1: FROM %(id)s"
) % {b"id": ID}
NAMED = (
    b"[1/4] STEP 1/1: FROM scratch AS base\n"
    b"[2/4] STEP 1/2: FROM base AS mid\n[2/4] STEP 2/2: RUN echo\n"
    b" [3/4] STEP 1/2: FROM %(id)s AS x\n"
    b"--> %(id)s\n[3/4] STEP 1/1: FROM --platform=linux/arm64 mid\r\n"
    b"[4/4] STEP 1/1: FROM %(id)s\n[9/9] STEP 1/1: FROM %(id)s AS y\n[3/4] STEP 1/1: FROM mid"
) % {b"id": ID}


def heard(*pieces: bytes) -> bytes:
    voices = Voices(WORD, BASES)
    return b"".join([*map(voices.feed, pieces), voices.finish()])


def test_a_steps_line_that_reads_like_the_builders_gets_a_space_before_it() -> None:
    assert heard(SAID) == HEARD


@given(st.lists(st.integers(0, len(SAID)), max_size=12))
def test_it_does_not_matter_how_the_output_is_cut(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(SAID)]
    assert heard(*(SAID[begin:end] for begin, end in pairwise(at))) == HEARD


def test_a_stage_that_begins_with_an_earlier_one_is_told_by_its_name() -> None:
    assert heard(STAGES) == NAMED


@given(st.lists(st.integers(0, len(STAGES)), max_size=12))
def test_a_stages_name_does_not_depend_on_how_the_output_is_cut(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(STAGES)]
    assert heard(*(STAGES[begin:end] for begin, end in pairwise(at))) == NAMED


def test_every_byte_by_itself_is_heard_alike() -> None:
    assert heard(*(STAGES[at : at + 1] for at in range(len(STAGES)))) == NAMED
    assert heard(*(SAID[at : at + 1] for at in range(len(SAID)))) == HEARD


def test_who_reads_the_output_counts_the_builders_steps_alone() -> None:
    progress = Progress()
    progress.feed(heard(SAID))
    progress.finish()

    assert progress.step == "3/3 COPY a b"
    assert (progress.steps, progress.cached) == (3, 1)


def test_a_second_beginning_changes_nothing() -> None:
    """Each of a step's two pipes begins with one."""
    begin = mark(WORD, BEGIN)
    assert (
        heard(begin + b"half" + begin + b" a line\nSTEP 1/1: x\n") == b"half a line\n STEP 1/1: x\n"
    )


def test_a_mark_with_another_word_is_only_output() -> None:
    other = mark(b"000000", END)
    said = mark(WORD, BEGIN) + other + b"\nSTEP 9/9: RUN x\n"

    assert heard(said) == other + b"\n STEP 9/9: RUN x\n"


def test_what_follows_the_builders_last_words_is_no_step() -> None:
    """They repeat the text of a step, which may have lines of its own."""
    last = b'Error: building at STEP "RUN /bin/sh -c exit 1\nSTEP 9/9: fine": exit status 1\n'

    assert heard(last) == last.replace(b"\nSTEP", b"\n STEP")


def test_a_line_that_cannot_be_the_builders_does_not_wait_for_its_end() -> None:
    voices = Voices(WORD)
    assert voices.feed(mark(WORD, BEGIN) + b"Downloading 3 %") == b"Downloading 3 %"
    assert voices.feed(b"STEP 1/1: x") == b"STEP 1/1: x"
    assert voices.feed(b"\nSTEP 1/1") == b"\n"
    assert voices.feed(b": x") + voices.finish() == b" STEP 1/1: x"
