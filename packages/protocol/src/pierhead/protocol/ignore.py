"""`.dockerignore`, with the rules of current BuildKit (moby/patternmatcher).

Patterns are tried in order and the last one that fits decides. A pattern that fits a folder fits
all that is in it. `!` takes back what earlier patterns left out. As in BuildKit's walk, a pattern
that could not change the answer for a folder is not tried there, and so not inherited either.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

_SPECIAL: Final = re.compile(r"[*?\[\\]")
_SPECIAL_OR_CLOSED: Final = re.compile(r"[*?\[\]\\]")
_ONE: Final = r"(?:\\.|[^\\\]\-])"
_BRACKET: Final = re.compile(rf"\[(\^?+)((?:{_ONE}(?:-{_ONE})?)+)\]", re.DOTALL)
_IN_BRACKET: Final = re.compile(r"\\(.)|(-)|(.)", re.DOTALL)


class Pattern(NamedTuple):
    """One line of the file."""

    text: str
    keeps: bool  # it began with `!`
    regex: re.Pattern[str]

    @property
    def end(self) -> str:
        """What every path ends with that fits; of many patterns, nothing."""
        return _SPECIAL_OR_CLOSED.split(self.text)[-1].lstrip("/")

    def may_fit_below(self, folder: str) -> bool:
        """Say whether something in a folder may fit; never wrong when it says no."""
        special = _SPECIAL.search(self.text)
        plain = self.text[: special.start()] if special else self.text
        below = folder + "/"
        return plain.startswith(below) or (special is not None and below.startswith(plain))


class Ignore:
    """All patterns of a context."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = patterns
        self._keeping = [pattern for pattern in patterns if pattern.keeps]
        # Most paths fit nothing. What fits a pattern has the same plain end, and of those patterns
        # that have none, one look at all of them together says so.
        self._ends = tuple({pattern.end for pattern in patterns if pattern.end})
        endless = [pattern.regex.pattern for pattern in patterns if not pattern.end]
        every = "|".join(f"(?:{one})" for one in endless)
        self._endless = re.compile(every, re.DOTALL) if endless else None
        self._nothing = False, (False,) * len(patterns)

    def look(self, path: str, above: tuple[bool, ...] = ()) -> tuple[bool, tuple[bool, ...]]:
        """Say whether a path is left out, and which patterns fit it.

        `above` says which patterns fit the folder that the path is in.
        """
        if (
            not path.endswith(self._ends)
            and True not in above
            and (self._endless is None or self._endless.match(path) is None)
        ):
            return self._nothing
        out = False
        fits = []
        for number, pattern in enumerate(self.patterns):
            fit = above[number] if above else False
            if not fit and pattern.keeps == out:
                fit = pattern.regex.match(path) is not None
            fits.append(fit)
            if fit:
                out = not pattern.keeps
        return out, tuple(fits)

    def may_keep_below(self, folder: str) -> bool:
        """Say whether a `!` may take back something that is in a folder which is left out."""
        return any(pattern.may_fit_below(folder) for pattern in self._keeping)


def kept_by_builders(dockerfile: str) -> frozenset[str]:
    """Return what a build needs, whatever the ignore file says."""
    return frozenset({".dockerignore", dockerfile, f"{dockerfile}.dockerignore"})


def parse_ignore(lines: Iterable[str]) -> Ignore:
    """Return the patterns of a `.dockerignore`.

    Raises:
        ValueError: a line is not a pattern.
    """
    return Ignore([*_patterns(lines)])


def _patterns(lines: Iterable[str]) -> Iterator[Pattern]:
    for number, raw in enumerate(lines, start=1):
        line = raw.removeprefix("\ufeff") if number == 1 else raw
        line = "" if line.startswith("#") else line.strip()
        keeps = line.startswith("!")
        given = line.removeprefix("!").strip()
        text = _clean(given)
        try:
            if keeps and not given:
                raise re.error("nothing follows `!`")
            if text:
                yield Pattern(text, keeps, re.compile(_regex(text), re.DOTALL))
        except re.error as error:
            raise ValueError(f"line {number}: {line!r} is not a pattern: {error}") from error


def _clean(text: str) -> str:
    """Return a path without `.`, double slashes and what `..` undoes, as Go's filepath.Clean."""
    parts: list[str] = []
    for part in text.split("/"):
        if part in {"", "."}:
            continue
        if part != ".." or (not text.startswith("/") and parts[-1:] in ([], [".."])):
            parts.append(part)
        else:
            del parts[-1:]
    return "/".join(parts)


def _regex(text: str) -> str:
    """Translate one pattern, as patternmatcher's `compile` does."""
    if text.startswith("**") and not _SPECIAL.search(text, 2) and text[2:3] != "/":
        return ".*" + re.escape(text[2:]) + r"\Z"  # `**name` is any path that ends so
    out, at = "", 0
    while at < len(text):
        piece, at = _next(text, at)
        out += piece
    return out + r"\Z"


def _next(text: str, at: int) -> tuple[str, int]:
    """Translate what begins at an index; return it and where the rest begins."""
    if text.startswith("**", at):
        end = at + 3 if text.startswith("/", at + 2) else at + 2
        return ("(?:.*/)?" if end < len(text) else ".*"), end
    match text[at]:
        case "*":
            return "[^/]*", at + 1
        case "?":
            return "[^/]", at + 1
        case "\\" if at + 1 == len(text):
            raise re.error("nothing follows the backslash")
        case "\\":
            return re.escape(text[at + 1]), at + 2
        case "[":
            return _bracket(text, at)
        case plain:
            return re.escape(plain), at + 1


def _bracket(text: str, at: int) -> tuple[str, int]:
    found = _BRACKET.match(text, at)
    if found is None:
        raise re.error("a bracket is empty or not closed")
    inner = _IN_BRACKET.sub(
        lambda one: one[2] or re.escape(one[1] or one[3]).replace("&", r"\&"), found[2]
    )
    return f"[{found[1]}{inner}]", found.end()
