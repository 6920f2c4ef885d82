"""Stages whose names are written in capitals here and small there are the same."""

import pytest

from pierhead.runner.domain.stagename import with_one_spelling


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("FROM x AS Base\nFROM base as b1\n", "FROM x AS Base\nFROM Base as b1\n"),
        ("FROM x AS a\nFROM y\nCOPY --from=A /a /\n", "FROM x AS a\nFROM y\nCOPY --from=a /a /\n"),
        (
            "FROM x AS A\nFROM y\nRUN --mount=type=bind,from=a,target=/a true\n",
            "FROM x AS A\nFROM y\nRUN --mount=type=bind,from=A,target=/a true\n",
        ),
        ("from x as A\nFROM \\\n # why\n  a AS b\n", "from x as A\nFROM \\\n # why\n  A AS b\n"),
        (
            "FROM --platform=p x AS A\nFROM --platform=p a\n",
            "FROM --platform=p x AS A\nFROM --platform=p A\n",
        ),
        ("FROM x AS A\nFROM y AS a\nFROM a\n", "FROM x AS A\nFROM y AS A\nFROM A\n"),
    ],
)
def test_they_are_written_as_the_first_one_says(said: str, meant: str) -> None:
    assert with_one_spelling(said) == meant


def test_they_are_written_as_the_target_says() -> None:
    said = "FROM x AS Base\nFROM base AS last\n"
    assert with_one_spelling(said, "BASE") == "FROM x AS BASE\nFROM BASE AS last\n"


@pytest.mark.parametrize(
    "text",
    [
        "FROM ubuntu AS Ubuntu\nRUN true\n",  # the image, not itself
        "FROM a\nFROM x AS A\n",  # the stage comes later
        "FROM x AS a\nFROM y\nCOPY --from=1 A B\n",
        "FROM x AS a\nFROM y\nRUN tool --from=A\n",  # a program's own flag
        "FROM x AS a\nFROM registry/A\n",
        "FROM x AS a\nRUN <<EOF\nFROM A\nEOF\n",
    ],
)
def test_what_is_no_such_name_stays(text: str) -> None:
    assert with_one_spelling(text) == text
