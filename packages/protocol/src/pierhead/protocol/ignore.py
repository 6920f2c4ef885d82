"""`.dockerignore`, with the rules of current BuildKit (moby/patternmatcher).

Patterns are tried in order and the last one that fits decides. A pattern that fits a folder fits
all that is in it. `!` takes back what earlier patterns left out. As in BuildKit's walk, a pattern
that could not change the answer for a folder is not tried there, and so not inherited either.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from pierhead.protocol.wildcard import to_regex

_SPECIAL: Final = re.compile(r"[*?\[\\]")
_SPECIAL_OR_CLOSED: Final = re.compile(r"[*?\[\]\\]")
# A line costs time for every path, and comes from anybody.
PATTERNS_MAX: Final = 5000
PATTERN_LENGTH_MAX: Final = 4096  # characters, as of a path


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

    def leaves_out(self, path: str) -> bool:
        """Say whether a path is left out, by itself or with a folder that it is in."""
        out, fits = False, tuple[bool, ...]()
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            out, fits = self.look("/".join(parts[:depth]), fits)
        return out

    def may_keep_below(self, folder: str) -> bool:
        """Say whether a `!` may take back something that is in a folder which is left out."""
        return any(pattern.may_fit_below(folder) for pattern in self._keeping)


def kept_by_builders(dockerfile: str) -> frozenset[str]:
    """Return what a build needs, whatever the ignore file says."""
    return frozenset({dockerfile, *ignore_files(dockerfile)})


def ignore_files(dockerfile: str) -> tuple[str, ...]:
    """Return what an ignore file may be called: the first one that is there counts, alone."""
    return f"{dockerfile}.dockerignore", ".dockerignore"


def only_for_builders(ignore: Ignore, dockerfile: str) -> list[str]:
    """Return what a build needs and its ignore file leaves out: no step may see that."""
    return sorted(name for name in kept_by_builders(dockerfile) if ignore.leaves_out(name))


def parse_ignore(lines: Iterable[str]) -> Ignore:
    """Return the patterns of a `.dockerignore`.

    Raises:
        ValueError: a line is not a pattern, or there are too many.
    """
    patterns = [*islice(_patterns(lines), PATTERNS_MAX + 1)]
    if len(patterns) > PATTERNS_MAX:
        raise ValueError(f"there are more than {PATTERNS_MAX} patterns")
    return Ignore(patterns)


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
            if len(text) > PATTERN_LENGTH_MAX:
                raise re.error(f"it is longer than {PATTERN_LENGTH_MAX} characters")
            if text:
                yield Pattern(text, keeps, re.compile(to_regex(text), re.DOTALL))
        except re.error as error:
            shown = repr(line[:100])
            raise ValueError(f"line {number}: {shown} is not a pattern: {error}") from error


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
