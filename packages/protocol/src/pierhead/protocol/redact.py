"""Takes secrets out of a stream of bytes, and tokens of ours out of log records.

A value is looked for as it is, line by line, and in the forms in which programs print what they
were given: base64 at each alignment, hex, in URLs, in JSON, in shells. Nothing is found that is
shorter than `SHORTEST`: hiding every "{" or "true" would hide the log.

What is not here: a promise. A program that turns a secret into something else prints that.
"""

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Final
from urllib.parse import quote_from_bytes, quote_plus

SHORTEST: Final = 6  # bytes of a whole value
SHORTEST_LINE: Final = 8  # of one line of a value that has several
MARK: Final = b"***"
# Long values are looked for in pieces, so that little of the stream has to be held back.
_PIECE: Final = 1024
_BASE64_LINES: Final = (64, 76)  # where openssl and `base64` break their lines

_TOKEN: Final = re.compile(r"\b(ph[oplbr]_[\w.~/-]{8})[\w.~/-]+|\b(ph1_\S{8})\S+")


def hide_tokens(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Cut every token in the values of a log record after its first characters."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _TOKEN.sub(lambda found: f"{found[1] or found[2]}***", value)
    return event


class Patterns:
    """What has to be found of some values."""

    def __init__(self, values: Iterable[bytes]) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= SHORTEST}
        pieces = {piece for form in forms for piece in _pieces(form)}
        self.longest: Final = max(map(len, pieces), default=0)
        # Those that begin alike are next to each other, however many they are.
        self._pieces: Final = sorted(pieces)
        self._within: Final = [*_longest_beginnings(self._pieces)]
        self._heads = {piece[:SHORTEST] for piece in pieces}
        lengths = range(1, SHORTEST)
        self._beginnings = {head[:length] for head in self._heads for length in lengths}

    def __bool__(self) -> bool:
        return self.longest > 0

    def find(self, data: bytes) -> list[tuple[int, int]]:
        """Return where secrets are: ranges in order, which neither overlap nor touch."""
        merged: list[tuple[int, int]] = []
        heads = self._heads
        # A look at each place takes the same time for one value and for a thousand lines.
        for start in range(len(data) - SHORTEST + 1):
            if data[start : start + SHORTEST] not in heads:
                continue
            length = self._longest_at(data[start : start + self.longest])
            end = start + length if length else 0
            if merged and end and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            elif end:
                merged.append((start, end))
        return merged

    def begun(self, data: bytes) -> int:
        """Return where what follows could be the end of a secret that begins in `data`."""
        for start in range(max(0, len(data) - self.longest + 1), len(data)):
            head = data[start : start + SHORTEST]
            if len(head) < SHORTEST and head in self._beginnings:
                return start
            if head in self._heads:
                rest = data[start:]
                after = bisect_right(self._pieces, rest)
                if after < len(self._pieces) and self._pieces[after].startswith(rest):
                    return start
        return len(data)

    def _longest_at(self, data: bytes) -> int:
        """Return the length of the longest piece that data begins with; 0: there is none.

        Whatever data begins with, the last piece that is not after it begins with, too.
        """
        at = bisect_right(self._pieces, data) - 1
        while at >= 0 and not data.startswith(self._pieces[at]):
            at = self._within[at]
        return len(self._pieces[at]) if at >= 0 else 0

    def hide(self, text: str) -> str:
        """Return a text without secrets."""
        stream = Redactor(self)
        data = text.encode("utf-8", "surrogateescape")
        return (stream.feed(data) + stream.finish()).decode("utf-8", "replace")


class Redactor:
    """Replaces secrets in a stream by `***`, wherever the stream is cut."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._held = b""  # may be the beginning of a secret
        self._hidden = 0  # so much of it belongs to one that was replaced already

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown of all bytes until now, and was not shown yet."""
        if not self._patterns:
            return data
        data = self._held + data
        spans = self._spans(data)
        end = self._patterns.begun(data)
        shown = self._shown(data, spans, end)
        # One that was begun before, or is begun by what is shown now, and goes on in what is held.
        open_until = [stop for start, stop in spans if start < end or (self._hidden and not start)]
        self._held = data[end:]
        self._hidden = max(0, *(stop - end for stop in open_until), 0)
        return shown

    def finish(self) -> bytes:
        """Return the rest. The beginning of a secret is hidden, too, when it says much."""
        data, hidden = self._held, self._hidden
        self._held, self._hidden = b"", 0
        if hidden:
            return b""
        return MARK if len(data) >= SHORTEST else data

    def _spans(self, data: bytes) -> list[tuple[int, int]]:
        spans = self._patterns.find(data)
        if self._hidden and spans and spans[0][0] <= self._hidden:
            return [(0, max(self._hidden, spans[0][1])), *spans[1:]]
        return [(0, self._hidden), *spans] if self._hidden else spans

    def _shown(self, data: bytes, spans: list[tuple[int, int]], end: int) -> bytes:
        shown, at = [], 0
        for start, stop in spans:
            if start >= end:
                break
            shown.append(data[at:start])
            if start > 0 or not self._hidden:
                shown.append(MARK)
            at = stop
        return b"".join([*shown, data[at:end]])


def _longest_beginnings(pieces: list[bytes]) -> Iterator[int]:
    """Yield for each of sorted pieces where the longest other one is that it begins with; or -1."""
    open_ones: list[int] = []
    for at, piece in enumerate(pieces):
        while open_ones and not piece.startswith(pieces[open_ones[-1]]):
            open_ones.pop()
        yield open_ones[-1] if open_ones else -1
        open_ones.append(at)


def _pieces(form: bytes) -> Iterator[bytes]:
    cuts = list(range(0, max(1, len(form) - _PIECE + 1), _PIECE))
    for number, start in enumerate(cuts):
        yield form[start : cuts[number + 1] if number + 1 < len(cuts) else None]


def _forms(value: bytes) -> Iterator[bytes]:
    """Yield the ways in which a value may be printed."""
    bare = value.strip()
    if len(bare) < SHORTEST:
        return
    if b"\n" in bare:
        yield from (
            line for line in map(bytes.strip, bare.splitlines()) if len(line) >= SHORTEST_LINE
        )
    for text in {value, bare}:
        yield text
        yield text.hex().encode()
        yield text.hex().upper().encode()
        yield from _base64(text)
        yield from _quoted(text)


def _quoted(text: bytes) -> Iterator[bytes]:
    """Yield a value in URLs, shells and JSON."""
    readable = text.decode("utf-8", "surrogateescape")
    for percent in (
        quote_from_bytes(text, safe=""),
        quote_from_bytes(text),
        quote_plus(readable, errors="surrogateescape"),
    ):
        yield percent.encode()
        yield re.sub("%..", lambda found: found[0].lower(), percent).encode()
    yield text.replace(b"'", b"'\\''")
    for ascii_only in (True, False):
        quoted = json.dumps(readable, ensure_ascii=ascii_only)[1:-1]
        yield quoted.encode("utf-8", "surrogateescape")


def _base64(text: bytes) -> Iterator[bytes]:
    """Yield what is in every base64 text that has `text` in it, whatever is before and after."""
    for before in range(3):
        padded = base64.b64encode(bytes(before) + text)
        # The first characters also depend on what is before, the last ones on what is after.
        inner = padded[(0, 2, 3)[before] : len(padded) - (0, 3, 2)[(before + len(text)) % 3]]
        yield inner
        yield inner.replace(b"+", b"-").replace(b"/", b"_")
        for width in _BASE64_LINES if before == 0 else ():
            lines = (inner[at : at + width] for at in range(0, len(inner), width))
            yield from (line for line in lines if len(line) >= SHORTEST_LINE)
