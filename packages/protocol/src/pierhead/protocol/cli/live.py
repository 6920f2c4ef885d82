"""The last line of a terminal, which is written anew while something goes on.

It stands below the story and is gone before the story's next line, so a terminal ends up with the
same lines as a file does. Where nobody looks on, there is none.
"""

import contextlib
import os
import sys
import unicodedata
from collections.abc import Iterator
from typing import Final

_AGAIN: Final = "\r\x1b[K"  # to the line's beginning, and clear it (ECMA-48, EL)
_USUAL_COLUMNS: Final = 80  # of a terminal that does not know how wide it is

_shown = ""
_question = ""


def is_watched() -> bool:
    """Say whether the story is written to a terminal that can write a line anew."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}


def show(line: str) -> None:
    """Write the last line anew. `line` has no control characters."""
    global _shown
    if _question or not is_watched():
        return
    _shown = _fitting(line)
    print(f"{_AGAIN}{_shown}", end="", file=sys.stderr, flush=True)


def hide() -> None:
    """Clear the last line, if there is one: the story goes on there."""
    global _shown
    if _question and not is_watched():
        print(file=sys.stderr, flush=True)
    elif _shown or _question:
        print(_AGAIN, end="", file=sys.stderr, flush=True)
    _shown = ""


@contextlib.contextmanager
def above() -> Iterator[None]:
    """Let a line be told: what goes on is gone before it, and an open question below it again."""
    hide()
    yield
    ask_again()


def ask_again() -> None:
    """Write the question that is open, if there is one."""
    if _question:
        print(_fitting(_question), end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def asking(question: str) -> Iterator[None]:
    """Keep a question in the last line for as long as it is open."""
    global _question
    hide()
    _question = question
    ask_again()
    try:
        yield
    finally:
        _question = ""


def _fitting(line: str) -> str:
    columns = os.get_terminal_size(sys.stderr.fileno()).columns or _USUAL_COLUMNS
    return clipped(line, columns - 1)


def clipped(line: str, columns: int) -> str:
    """Return as much of a line as fits into one row: one that wraps could not be cleared."""
    taken = 0
    for index, character in enumerate(line):
        taken += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if taken > columns:
            return line[:index]
    return line
