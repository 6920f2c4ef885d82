"""Words of others neither act on a terminal nor look like lines of ours."""

import io
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.cli.speak import (
    CommandFailed,
    LogLines,
    columns,
    fail_with,
    give,
    give_json,
    harmless,
    one_line,
    shown_line,
    tell,
)
from pierhead.protocol.errors import Refused
from pierhead.protocol.problem import problem

TITLE = "\x1b]0;pwned\x07"
CLEAR = "\x1b[2J\x1b[H"
RED = "\x1b[31m"
HOSTILE = f"{TITLE}{CLEAR}\x9b31m\b\b\u202egnp\u2066"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("say", [tell, give])
def test_nothing_that_is_said_acts_on_a_terminal_or_begins_a_line(
    say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(f"waiting   {HOSTILE}\nweb  built on desktop\r")

    said = "".join(capsys.readouterr())
    assert ACTS.search(said) is None
    assert said.count("\n") == 1
    assert "\\x1b]0;pwned\\x07" in said
    assert "\\u202egnp" in said


def test_a_table_has_one_line_for_each_row() -> None:
    lines = list(columns([("NAME", "STATE"), (f"a\n{CLEAR}", "b\x7f")]))

    assert lines == ["NAME              STATE", "a\\n\\x1b[2J\\x1b[H  b\\x7f"]


def test_what_a_refusal_says_cannot_look_like_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    refused = fail_with(Refused(problem("in-use", f"no\n\nhint: curl evil | sh{CLEAR}", hint="do")))

    assert isinstance(refused, CommandFailed)
    assert capsys.readouterr().err == (
        "error: no\\n\\nhint: curl evil | sh\\x1b[2J\\x1b[H\n\nhint: do\n"
    )


def test_json_stays_json_and_has_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    give_json({"said": HOSTILE, "tab": "a\tb\n"})

    out = capsys.readouterr().out
    assert ACTS.search(out) is None
    assert msgspec.json.decode(out) == {"said": HOSTILE, "tab": "a\tb\n"}


@pytest.mark.parametrize(
    ("line", "in_colours", "plain"),
    [
        ("plain\ttext", "plain\ttext", "plain\ttext"),
        (f"{RED}bad\x1b[0m news", f"{RED}bad\x1b[0m news\x1b[0m", "bad news"),
        (f"{CLEAR}gone", "\\x1b[2J\\x1b[Hgone", "\\x1b[2J\\x1b[Hgone"),
        (f"{RED}{TITLE}", f"{RED}\\x1b]0;pwned\\x07\x1b[0m", "\\x1b]0;pwned\\x07"),
        ("10 %\r50 %\r100 %\r", "100 %", "100 %"),
        ("\x1b[31", "\\x1b[31", "\\x1b[31"),
    ],
)
def test_of_a_line_of_a_log_only_colours_are_let_through(
    line: str, in_colours: str, plain: str
) -> None:
    assert shown_line(line, colours=True) == in_colours
    assert shown_line(line, colours=False) == plain


@given(st.text())
def test_whatever_a_log_says_only_colours_act(text: str) -> None:
    coloured = re.sub("\x1b\\[[0-9;:]*m", "", shown_line(text.replace("\n", ""), colours=True))
    assert ACTS.search(coloured) is None
    assert ACTS.search(shown_line(text, colours=False)) is None
    assert ACTS.search(harmless(text)) is None
    assert "\n" not in one_line(text)


def test_a_log_on_a_terminal_is_the_same_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    log = f"one\n{RED}two{CLEAR}\ncaf\xe9 \xff\nlast".encode()
    whole, pieces = Terminal(), Terminal()

    for terminal, parts in ((whole, [log]), (pieces, [log[at : at + 1] for at in range(len(log))])):
        lines = LogLines(terminal)
        for part in parts:
            lines.write(part)
        lines.flush()

    assert whole.getvalue() == pieces.getvalue()
    assert whole.getvalue() == (f"one\n{RED}two\\x1b[2J\\x1b[H\x1b[0m\ncaf\xe9 \xff\nlast\n")


def test_who_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    LogLines(terminal).write(f"{RED}x\n".encode())

    assert terminal.getvalue() == "x\n"
