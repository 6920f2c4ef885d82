"""`.dockerignore`, with the rules of current BuildKit (moby/patternmatcher).

Patterns are tried in order and the last one that fits decides. A pattern fits a path when it fits
the path itself or any folder above it. `!` takes back what earlier patterns left out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of the file."""

    text: str
    keeps: bool  # it began with `!`
    regex: re.Pattern[str]


class Ignore:
    """All patterns of a context."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self.keeps_any = any(pattern.keeps for pattern in patterns)

    def fits(self, path: str, above: tuple[bool, ...] = ()) -> tuple[bool, ...]:
        """Return which patterns fit a path; `above`: which fit the folder that it is in."""
        inherited = above or (False,) * len(self._patterns)
        return tuple(
            known or pattern.regex.match(path) is not None
            for pattern, known in zip(self._patterns, inherited, strict=True)
        )

    def leaves_out(self, fits: tuple[bool, ...]) -> bool:
        """Say whether a path is left out, from which patterns fit it."""
        decided = False
        for pattern, fit in zip(self._patterns, fits, strict=True):
            if fit:
                decided = not pattern.keeps
        return decided


def parse_ignore(lines: Iterable[str]) -> Ignore:
    """Return the patterns of a `.dockerignore`.

    Raises:
        ValueError: a line is not a pattern.
    """
    patterns = []
    for number, raw in enumerate(lines):
        line = raw.removeprefix("\ufeff") if number == 0 else raw
        if line.startswith("#"):
            continue
        text = line.strip()
        keeps = text.startswith("!")
        text = _clean(text.removeprefix("!").strip())
        if text in {"", "."}:
            continue
        try:
            patterns.append(Pattern(text, keeps, re.compile(_regex(text), re.DOTALL)))
        except re.error as error:
            raise ValueError(f"line {number + 1}: {raw.strip()!r} is not a pattern") from error
    return Ignore(patterns)


def _clean(text: str) -> str:
    """Return a path without `.`, `..` and double slashes; all is relative to the root."""
    parts: list[str] = []
    for part in text.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)


def _regex(text: str) -> str:
    """Translate one pattern, as patternmatcher's `compile` does."""
    out, i = "", 0
    while i < len(text):
        char = text[i]
        if text.startswith("**", i):
            i += 2
            if text.startswith("/", i):
                i += 1
            out += "(.*/)?" if i < len(text) else ".*"
            continue
        if char == "\\" and i + 1 < len(text):
            i += 1
            out += re.escape(text[i])
        elif char == "[":
            end = text.find("]", i + 2)
            if end < 0:
                raise re.error("a bracket is not closed")
            inner = text[i + 1 : end].replace("[", "\\[")
            out += "[" + inner + "]"
            i = end
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
        i += 1
    return out + r"\Z"
