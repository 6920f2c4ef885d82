"""The last line of a terminal: what goes on now."""

import contextlib
import os
import pty
import sys
from collections.abc import Iterator

import pytest

from pierhead.protocol import build as wire
from pierhead.protocol.cli import live
from pierhead.protocol.cli.speak import tell
from pierhead.router.cli.follow import Story


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Have the story written to a terminal, and yield where what it shows can be read."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        patched.setattr(os, "get_terminal_size", lambda _: os.terminal_size((20, 24)))
        yield ours
    os.close(ours)


def written(terminal: int, lines: int = 1) -> bytes:
    """Return what was written, to the end of so many lines."""
    text = b""
    while text.count(b"\n") < lines:
        text += os.read(terminal, 1000)
    return text


def test_a_line_of_the_story_takes_the_place_of_what_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with terminal(monkeypatch) as shows:
        live.show("step 3 of 4")
        tell("step 3 is over")

        assert written(shows) == b"\r\x1b[Kstep 3 of 4\r\x1b[Kstep 3 is over\r\n"


def test_a_question_stays_below_the_story_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with terminal(monkeypatch) as shows:
        live.show("step 3 of 4")
        with live.asking("sure? "):
            live.show("step 4 of 4")
            tell("step 3 is over")
        tell("yes")

        expected = (b"step 3 of 4", b"sure? ", b"step 3 is over\r\nsure? yes\r\n")
        assert written(shows, 2) == b"".join(b"\r\x1b[K" + line for line in expected)


def test_where_nobody_looks_on_there_is_no_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    live.show("step 3 of 4")
    live.hide()

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "row"), [("abcdef", "abcde"), ("abc", "abc"), ("\u5c71\u5ddd\u6d77", "\u5c71\u5ddd")]
)
def test_a_row_is_as_wide_as_the_terminal(line: str, row: str) -> None:
    assert live.clipped(line, 5) == row


def began(name: str) -> wire.Step:
    return wire.Step(cursor="2", name=name, state="started", at="2026-03-01T12:00:00Z")


def test_what_goes_on_is_the_step_and_what_it_says() -> None:
    story = Story("web")
    story.hear(wire.Log(cursor="1", offset=0, data=b"[1/2] STEP 3/4: RUN make\n"))
    story.hear(began("[1/2] 3/4 RUN make"))
    story.hear(wire.Log(cursor="2", offset=25, data=b"cc -c a.c\ncc -c"))

    assert story.now(0.0).startswith(" [1/2] 3/4 RUN make  ")
    assert story.now(0.0).endswith("   cc -c a.c")

    story.hear(wire.Log(cursor="3", offset=41, data=b" b.c\nSTEP 4/4: CMD a\n"))
    story.hear(began("4/4 CMD a"))

    assert story.now(0.0).startswith(" 4/4 CMD a")
    assert "cc" not in story.now(0.0)


def test_who_wants_it_quiet_is_told_nothing_of_what_goes_on() -> None:
    story = Story("web", quiet=True)
    story.hear(began("3/4 RUN make"))

    assert story.now(0.0) == ""
