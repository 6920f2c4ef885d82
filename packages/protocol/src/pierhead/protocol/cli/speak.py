"""How the command speaks: results on stdout, the story on stderr, errors with the next step.

Whatever is said may hold words of others: of steps, runners, control planes. So no control
character reaches a terminal from here, but for the colours of a log.
"""

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, TextIO

import msgspec

from pierhead.protocol.cli import live
from pierhead.protocol.errors import Invalid, PierheadError, Unavailable
from pierhead.protocol.problem import REMEDIES, Problem
from pierhead.protocol.units import size as size

OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
INTERRUPTED: Final = 130
# What a refusal without a problem of its own is called with --json (RFC 9457, about:blank).
_TITLES: Final = {REFUSED: "Refused", USAGE: "Wrong usage", UNAVAILABLE: "Not available"}
_STATUS: Final = {REFUSED: 422, USAGE: 400, UNAVAILABLE: 503}
_PROGRESS_SECONDS: Final = 1.0
# C0 and C1 without tab and line feed, and what reorders the text around it (UAX #9).
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
# Select Graphic Rendition (ECMA-48, 8.3.117): colours, bold and the like.
_COLOUR: Final = re.compile("\x1b\\[[0-9;:]*m")
_PLAIN: Final = "\x1b[0m"


_as_json = False


def speak_json(wanted: bool) -> None:
    """Say from now on in problem documents, on stdout, what goes wrong: `--json` was asked for."""
    global _as_json
    _as_json = wanted


class CommandFailed(Exception):
    """The command ends here; everything was said already."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def tell(line: str = "", *, end: str = "\n") -> None:
    """Write a line of the story, or the beginning of one."""
    with live.above():
        print(one_line(line), end=end, file=sys.stderr, flush=True)


def tell_text(text: str) -> None:
    """Write several lines of the story; whoever made them looked at the words of others."""
    for line in text.split("\n"):
        tell(line)


def give(line: str) -> None:
    """Write a line of the result."""
    with live.above():
        print(one_line(line), flush=True)


def give_json(document: object) -> None:
    """Write a document of the result, as one line."""
    text = msgspec.json.encode(document).decode()
    with live.above():
        print(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def tell_log(line: str) -> None:
    """Write a line of a log to the story: with its colours, if a terminal shows them."""
    with live.above():
        print(shown_line(line, colours=has_colours(sys.stderr)), file=sys.stderr, flush=True)


def has_colours(stream: TextIO) -> bool:
    """Say whether what is written there is looked at in colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def harmless(text: str) -> str:
    """Return a text with its control characters written out: `\\x1b`."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return words of others as a part of a line: without a control character, and without an end.

    So nothing that a build or a runner says can look like a line of ours.
    """
    return harmless(text).replace("\n", "\\n")


def shown_line(line: str, *, colours: bool) -> str:
    """Return what a terminal may show of a line of a log: colours, and nothing else that acts.

    Of a line that was written over again and again, as progress bars do, the last one counts.
    """
    last = next(filter(None, reversed(line.split("\r"))), "")
    if not colours:
        return harmless(_COLOUR.sub("", last))
    parts = [harmless(part) for part in _COLOUR.split(last)]
    if len(parts) == 1:
        return parts[0]
    between = [*_COLOUR.findall(last), _PLAIN]
    return "".join(map("".join, zip(parts, between, strict=True)))


def fail(text: str, hint: str, code: int = REFUSED) -> CommandFailed:
    """Say what is wrong and what to do, and return what to raise."""
    if _as_json and _given(
        Problem(
            type="about:blank",
            title=_TITLES[code],
            status=_STATUS[code],
            detail=text.strip(),
            hint=hint,
        )
    ):
        return CommandFailed(code)
    tell_text(f"error: {text.strip()}\n\nhint: {hint}")
    return CommandFailed(code)


def _given(problem: Problem) -> bool:
    """Write a problem as a result, if that can be written to still."""
    try:
        give_json(problem)
    except BrokenPipeError:
        raise
    except OSError:
        return False
    return True


def fail_with(error: PierheadError) -> CommandFailed:
    """Say what a problem says, and return what to raise."""
    problem: Problem = error.problem
    if _as_json:
        give_json(problem)
        return CommandFailed(_code(error))
    # An older control plane may have none.
    hint = problem.hint or REMEDIES.get(problem.slug) or "look into the control plane's log"
    return fail(one_line(problem.detail or problem.title), hint, _code(error))


def _code(error: PierheadError) -> int:
    if isinstance(error, Unavailable):
        return UNAVAILABLE
    return USAGE if isinstance(error, Invalid) and error.problem.status == 400 else REFUSED


def agreed(question: str, *, otherwise: str) -> bool:
    """Ask on the terminal, also when the input is a pipe; Enter alone is yes.

    Raises:
        CommandFailed: nobody can be asked; `otherwise` is what to type instead.
    """
    try:
        terminal = open("/dev/tty", "r+b", buffering=0)  # noqa: SIM115 - closed below
    except OSError:
        raise fail(
            "this changes the machine, and nobody is there to ask", otherwise, USAGE
        ) from None
    with terminal:
        terminal.write(f"{question}  [Y/n] ".encode())
        return terminal.readline(100).strip().lower() in {b"", b"y", b"yes"}


class LogLines:
    """Writes a log to a terminal, however it is cut into pieces."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colours = has_colours(stream)
        self._line = bytearray()

    def write(self, data: bytes) -> None:
        """Write the lines that are whole by now."""
        self._line += data
        if b"\n" not in data:
            return
        *lines, self._line = self._line.split(b"\n")
        for line in lines:
            self._say(line)

    def flush(self) -> None:
        """Write what is left as a line."""
        if self._line:
            self._say(self._line)
            self._line = bytearray()
        self._stream.flush()

    def _say(self, line: bytearray) -> None:
        text = line.decode("utf-8", "replace")
        self._stream.write(shown_line(text, colours=self._colours) + "\n")


class Progress:
    """Says every few seconds how far a long phase is; a short one needs no word."""

    def __init__(self, name: str, total: int, *, quiet: bool = False) -> None:
        self._name = name
        self._total = total
        self._quiet = quiet
        self._began = self._told = time.monotonic()  # noqa: TID251 - what people see is real time

    def at(self, done: int, total: int | None = None) -> None:
        """Note how much of it is done; `total`: it turned out to be another one."""
        self._total = self._total if total is None else total
        now = time.monotonic()  # noqa: TID251
        if self._quiet or now - self._told < _PROGRESS_SECONDS or not 0 < done < self._total:
            return
        self._told = now
        rate = done / (now - self._began)
        left = duration((self._total - done) / rate)
        amount = f"{size(done)} of {size(self._total)}"
        tell(f"{self._name:9} {amount} at {size(int(rate))}/s, {left} left")


def duration(seconds: float, *, whole: bool = False) -> str:
    """Return a duration for people."""
    if seconds < 60:
        return f"{int(seconds)} s" if whole else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min" if whole else f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def about(seconds: int) -> str:
    """Return a time that is only guessed as people say it: `about 40 s`."""
    if seconds < 8:
        return "a few seconds"
    if seconds < 95:
        return f"about {(seconds + 5) // 10 * 10} s"
    minutes = (seconds + 30) // 60
    if minutes < 60:
        return f"about {minutes} min"
    hours = (minutes + 30) // 60
    return f"about {hours} h" if hours < 48 else f"about {(hours + 12) // 24} days"


def in_line(place: int | None, seconds: int | None, what: str | None = None) -> str:
    """Return where somebody stands who waits: `2nd, about 40 s`, then what for, as far as known."""
    said = [nth(place)] if place is not None else []
    said += [about(seconds)] if seconds is not None else []
    return ": ".join(filter(None, (", ".join(said), what)))


def nth(number: int) -> str:
    """Return an ordinal: `2nd`."""
    end = (
        "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{end}"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines of a table, as wide as what is in them."""
    shown = [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
