"""How the command speaks: results on stdout, the story on stderr, errors with the next step."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

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
    print(line, end=end, file=sys.stderr, flush=True)


def give(line: str) -> None:
    """Write a line of the result."""
    print(line, flush=True)


def give_json(document: object) -> None:
    """Write a document of the result, as one line."""
    give(msgspec.json.encode(document).decode())


def fail(text: str, hint: str, code: int = REFUSED) -> CommandFailed:
    """Say what is wrong and what to do, and return what to raise."""
    if _as_json:
        give_json(
            Problem(
                type="about:blank",
                title=_TITLES[code],
                status=_STATUS[code],
                detail=text.strip(),
                hint=hint,
            )
        )
        return CommandFailed(code)
    tell(f"error: {text.strip()}")
    tell()
    tell(f"hint: {hint}")
    return CommandFailed(code)


def fail_with(error: PierheadError) -> CommandFailed:
    """Say what a problem says, and return what to raise."""
    problem: Problem = error.problem
    if _as_json:
        give_json(problem)
        return CommandFailed(_code(error))
    # An older control plane may have none.
    hint = problem.hint or REMEDIES.get(problem.slug) or "look into the control plane's log"
    return fail(problem.detail or problem.title, hint, _code(error))


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


class Progress:
    """Says every few seconds how far a long phase is; a short one needs no word."""

    def __init__(self, name: str, total: int, *, quiet: bool = False) -> None:
        self._name = name
        self._total = total
        self._quiet = quiet
        self._began = self._told = time.monotonic()  # noqa: TID251 - what people see is real time

    def at(self, done: int) -> None:
        """Note how much of it is done."""
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


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines of a table, as wide as what is in them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
