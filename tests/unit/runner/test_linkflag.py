"""`COPY --link` for a builder without it: the flag goes, and everything else stays where it is."""

import pytest

from pierhead.runner.domain.linkflag import without_links


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("FROM x\nCOPY --link a b\n", "FROM x\nCOPY  a b\n"),
        ("COPY --chown=1 --link=true --from=x a b\n", "COPY --chown=1  --from=x a b\n"),
        ("add --LINK=false a b\n", "add  a b\n"),
        ("COPY --link \\\n  a \\\n  b\nRUN c\n", "COPY  \\\n  a \\\n  b\nRUN c\n"),
        ("COPY \\\n # why\n --link a b\n", "COPY \\\n # why\n  a b\n"),
    ],
)
def test_the_flag_goes(said: str, meant: str) -> None:
    assert without_links(said) == meant


@pytest.mark.parametrize(
    "text",
    [
        "RUN tool --link a\n",
        "COPY a --link\n",
        "COPY --linked a b\n",
        "# COPY --link a b\n",
        "RUN <<EOF\nCOPY --link a b\nEOF\n",
    ],
)
def test_what_is_no_such_flag_stays(text: str) -> None:
    assert without_links(text) == text
