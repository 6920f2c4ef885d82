"""Where in a Dockerfile something is: enough of its grammar to count lines, not to build."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

_ESCAPE: Final = re.compile(r"#\s*escape\s*=\s*(\S)\s*$", re.I)
# Between the words of an instruction, over its continuations and comments.
BETWEEN: Final = r"(?:[ \t]|\\[ \t]*\r?\n(?:[ \t]*(?:#[^\n]*)?\n)*)+"
_HEREDOC: Final = re.compile(r"<<-?[\"']?(\w+)[\"']?")
_STEP: Final = re.compile(r"^(?:\[\d+/\d+\] )?(?:(\d+)/\d+ )?(.*)$", re.S)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its continuations joined."""

    line: int  # where it begins, from 1
    text: str

    @property
    def words(self) -> list[str]:
        """The words, without flags; the first is the keyword in capitals."""
        first, *rest = self.text.split() or [""]
        return [first.upper(), *(word for word in rest if not word.startswith("--"))]


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile."""
    lines = text.splitlines()
    found = next((match for line in lines[:5] if (match := _ESCAPE.match(line))), None)
    escape = found[1] if found else "\\"
    begin, parts, until = 0, list[str](), ""
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if until:
            until = "" if stripped == until else until
            continue
        if not stripped or stripped.startswith("#"):
            continue
        begin = begin or number
        goes_on = stripped.endswith(escape)
        parts.append(stripped.removesuffix(escape))
        if goes_on:
            continue
        joined = " ".join(" ".join(parts).split())
        yield Instruction(begin, joined)
        heredoc = (
            _HEREDOC.search(joined) if joined[:4].upper() in {"RUN ", "COPY", "ADD "} else None
        )
        begin, parts, until = 0, [], heredoc[1] if heredoc else ""
    if parts:
        yield Instruction(begin, " ".join(" ".join(parts).split()))


def with_changed(text: str, change: Callable[[Instruction, str], str]) -> str:
    """Return a Dockerfile of which `change` has rewritten each instruction.

    It gets the instruction's text as it is there, up to the next one.
    """
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    found = [*instructions(text)]
    cuts = [*(starts[one.line - 1] for one in found), len(text)]
    changed = (
        change(one, text[at:to]) for one, (at, to) in zip(found, pairwise(cuts), strict=True)
    )
    return text[: cuts[0]] + "".join(changed)


def has_here_document(text: str) -> bool:
    """Say whether a step has one (`RUN <<EOF`)."""
    steps = (one for one in instructions(text) if one.words[0] in {"RUN", "COPY", "ADD"})
    return any(_HEREDOC.search(one.text) for one in steps)


def line_of_step(text: str, step: str) -> int | None:
    """Return the line of the step that buildah names, like `3/4 COPY a b`; none: not found."""
    found = _STEP.match(step)
    assert found is not None  # everything in it is optional
    wanted = " ".join(found[2].split())
    same = [one for one in instructions(text) if one.text == wanted]
    if len(same) > 1 and found[1]:
        # The same words twice: the step's number counts from its stage's FROM.
        numbers = _numbers_in_stage(text)
        same = [one for one in same if numbers[one.line] == int(found[1])] or same
    return same[0].line if same else None


def line_that_cannot_be_parsed(text: str) -> int | None:
    """Return the first line that buildah refuses before any step: it does not say which."""
    for one in instructions(text):
        keyword, *rest = one.words
        alone = len(rest) == 1 and "=" not in rest[0]
        if keyword == "FROM" and not (
            len(rest) == 1 or (len(rest) == 3 and rest[1].lower() == "as")
        ):
            return one.line
        if keyword == "ARG" and not rest:
            return one.line
        if keyword in {"ENV", "LABEL"} and (not rest or alone):
            return one.line
    return None


def _numbers_in_stage(text: str) -> dict[int, int]:
    numbers, number = {}, 0
    for one in instructions(text):
        number = 1 if one.words[0] == "FROM" else number + 1
        numbers[one.line] = number
    return numbers
