"""Makes a regular expression of a pattern of an ignore file, as moby/patternmatcher does.

`*` is any characters but slashes, `?` is one, `**` is any folders, or none, and a bracket is one
character. Patterns come from anybody, so what they are made into never goes back over what it
tried: without that, a line like `*a*a*a*a*b` takes longer than anybody lives for a single path.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

_SPECIAL: Final = re.compile(r"[*?\[\\]")
_ONE: Final = r"(?:\\.|[^\\\]\-])"
_BRACKET: Final = re.compile(rf"\[(\^?+)((?:{_ONE}(?:-{_ONE})?)+)\]", re.DOTALL)
_IN_BRACKET: Final = re.compile(r"\\(.)|(-)|(.)", re.DOTALL)
# Pieces of a pattern that have no fixed length, as patternmatcher writes them.
NAME: Final = "[^/]*"
FOLDERS: Final = "(?:.*/)?"
_FOLDERS: Final = ".*/"  # one at least
REST: Final = ".*"
_SLASH: Final = "/"
_OPEN: Final = frozenset({NAME, FOLDERS, REST})
_FORKS_MAX: Final = 5


def to_regex(text: str) -> str:
    """Return what exactly the paths match that fit a pattern.

    Raises:
        re.error: it is no pattern.
    """
    if text.startswith("**") and not _SPECIAL.search(text, 2) and text[2:3] != "/":
        return ".*" + re.escape(text[2:]) + r"\Z"  # `**name` is any path that ends so
    pieces = [*_fewer(pieces_of(text))]
    if sum(piece in _OPEN for piece in pieces) < 2:
        return "".join(pieces) + r"\Z"
    if sum(_forks_at(pieces, at) for at in range(len(pieces))) > _FORKS_MAX:
        raise re.error("too many `**` and brackets")
    every = [_without_return(one) for one in _forks(pieces)]
    return every[0] if len(every) == 1 else f"(?:{'|'.join(every)})"


def pieces_of(text: str) -> Iterator[str]:
    """Yield the expressions that a pattern is made of, one for each character or wildcard.

    Raises:
        re.error: it is no pattern.
    """
    at = 0
    while at < len(text):
        piece, at = _next(text, at)
        yield piece


def _next(text: str, at: int) -> tuple[str, int]:
    """Translate what begins at an index; return it and where the rest begins."""
    if text.startswith("**", at):
        end = at + 3 if text.startswith("/", at + 2) else at + 2
        return (FOLDERS if end < len(text) else REST), end
    match text[at]:
        case "*":
            return NAME, at + 1
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


def _is_bracket_with_slash(piece: str) -> bool:
    """Say whether it is one that a slash fits: then it may end a name."""
    return piece.startswith("[") and piece != NAME and re.match(piece, _SLASH) is not None


def _fewer(pieces: Iterator[str]) -> Iterator[str]:
    """Yield pieces, but one `**` for several in a row."""
    before = ""
    for piece in pieces:
        if piece != before or piece != FOLDERS:
            yield piece
        before = piece


def _forks_at(pieces: Sequence[str], at: int) -> bool:
    """Say whether a piece makes it two patterns: it is open whether a name ends there."""
    if pieces[at] == FOLDERS:
        return at > 0 and pieces[at - 1] != _SLASH
    return _is_bracket_with_slash(pieces[at])


def _forks(pieces: Sequence[str]) -> Iterator[list[str]]:
    """Yield patterns that together fit what one does, in each of which names end at slashes alone.

    Only of those it is true that the earliest fit of each part leaves most to the rest. So a
    bracket that a slash fits becomes a slash, or one that none fits; and `**` in the middle of a
    name nothing, or some folders.
    """
    at = next((at for at in range(len(pieces)) if _forks_at(pieces, at)), None)
    if at is None:
        yield [*pieces]
        return
    before, piece, after = pieces[:at], pieces[at], pieces[at + 1 :]
    ways = ((), (_FOLDERS,)) if piece == FOLDERS else ((_SLASH,), (f"(?!/){piece}",))
    for way in ways:
        yield from _forks([*before, *way, *after])


def _without_return(pieces: Sequence[str]) -> str:
    """Write a pattern so that what fitted once is never tried in another way.

    Only the last name is open, which has to fit to the end.
    """
    cut = max((at for at, piece in enumerate(pieces) if piece in {FOLDERS, _FOLDERS}), default=0)
    closed, last = _parts(pieces[:cut]), pieces[cut:]
    out = "".join(f"(?>{_shortest(part)})" for part in closed)
    lead, names = (last[0], last[1:]) if last[:1] in ([FOLDERS], [_FOLDERS]) else ("", last)
    open_from = max((at for at, piece in enumerate(names) if piece in {NAME, REST}), default=0)
    return out + lead + _shortest(names[:open_from]) + "".join(names[open_from:]) + r"\Z"


def _parts(pieces: Sequence[str]) -> list[list[str]]:
    """Return what is between `**`, each with the one before it."""
    parts = [list[str]()]
    for piece in pieces:
        if piece in {FOLDERS, _FOLDERS}:
            parts.append([])
        parts[-1].append(piece)
    return [part for part in parts if part]


def _shortest(pieces: Sequence[str]) -> str:
    """Write pieces so that each wildcard takes as little as it can, and keeps that."""
    out, closing = "", ""
    for piece in pieces:
        if piece in {FOLDERS, _FOLDERS}:
            out += "(?:.*?/)??" if piece == FOLDERS else ".*?/"
        elif piece == NAME:
            out, closing = f"{out}{closing}(?>[^/]*?", ")"
        else:
            out += piece
    return out + closing
