"""Names of stages, which are the same in capitals and small: for a builder that tells them apart.

It would take `FROM Base` for an image of some registry, when the stage is `AS base`. A name is
written everywhere as the target says it, or else as the stage itself does. Only what is written out
is found: a variable is left as it is.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pierhead.runner.domain.dockerfile import BETWEEN, Instruction, instructions, with_changed

_FLAGS: Final = rf"(?:--\S+{BETWEEN})*"
_FROM: Final = re.compile(rf"[ \t]*FROM{BETWEEN}{_FLAGS}(\S+)(?:{BETWEEN}AS{BETWEEN}(\S+))?", re.I)
_STEP: Final = re.compile(rf"[ \t]*(?:COPY|ADD|RUN){BETWEEN}{_FLAGS}", re.I)
_OF_FLAGS: Final = re.compile(r"(?:--|[,=])from=([^\s,]+)", re.I)


def with_one_spelling(text: str, target: str | None = None) -> str:
    """Return a Dockerfile in which each stage is written in one way."""
    names = _names(text, target)

    def spelled(said: str, line: int) -> str:
        name = names.get(said.lower())
        # An image may be called as a stage that comes later, or as the one it is the base of.
        return name.spelling if name is not None and name.line < line else said

    def change(one: Instruction, rest: str) -> str:
        for begin, end, line in reversed([*_mentions(one, rest)]):
            rest = rest[:begin] + spelled(rest[begin:end], line) + rest[end:]
        return rest

    return with_changed(text, change) if names else text


class _Name(NamedTuple):
    spelling: str
    line: int  # of the FROM that declares it


def _names(text: str, target: str | None) -> dict[str, _Name]:
    """Return the stages that have names, by their names in small letters."""
    names: dict[str, _Name] = {}
    for one in instructions(text):
        match one.words:
            case ["FROM", _, keyword, name] if keyword.lower() == "as":
                wanted = target if target and target.lower() == name.lower() else name
                names.setdefault(name.lower(), _Name(wanted, one.line))
    return names


def _mentions(one: Instruction, rest: str) -> Iterator[tuple[int, int, int]]:
    """Yield where an instruction has what may be a stage's name, and how far stages are known."""
    if one.words[0] == "FROM" and (found := _FROM.match(rest)) is not None:
        yield *found.span(1), one.line
        if found[2]:
            yield *found.span(2), one.line + 1
    elif one.words[0] in {"COPY", "ADD", "RUN"} and (found := _STEP.match(rest)) is not None:
        yield from ((*name.span(1), one.line) for name in _OF_FLAGS.finditer(found[0]))
