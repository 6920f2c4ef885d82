"""Why a process ended is taken from the end of what it wrote, since it was started."""

from pathlib import Path

import pytest

from pierhead.protocol.cli.lastwords import (
    LOOKED_AT_BYTES,
    LastWords,
    size_of,
    words_in,
    words_of_command,
    words_of_file,
)

SAID = '{"event": "serve.ready"}\nerror: it is full\n\nhint: free some space\n'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SAID, LastWords("it is full", "free some space")),
        (SAID + "error: other\n\nhint: do that\n", LastWords("other", "do that")),
        (SAID + "error: cut off", None),
        ("hint: before\nerror: it\n", None),
        ("an error: no\nhint: no\n", None),
        ("", None),
    ],
)
def test_the_last_error_with_its_hint_counts(text: str, found: LastWords | None) -> None:
    assert words_in(text) == found


def test_what_was_said_before_the_start_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert (size_of(log), words_of_file(log, 0)) == (0, None)
    log.write_text(SAID)
    since = size_of(log)
    assert words_of_file(log, since) is None
    log.write_text(SAID + "x\n" * LOOKED_AT_BYTES + "error: late\nhint: now\n")
    assert words_of_file(log, since) == LastWords("late", "now")


def test_a_journal_is_a_command_that_may_not_be_there() -> None:
    assert words_of_command(["printf", SAID]) == LastWords("it is full", "free some space")
    assert words_of_command(["/nothing/here"]) is None
