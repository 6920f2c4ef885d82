"""Whose words a build's output is: the builder's, or those of a step.

Both come as one stream of text, and a step can print whatever the builder would. So what stands
between buildah and runc says with a word that no step knows where a step's output begins and where
it ends. A step's line that reads like one of the builder's, which others look for in the log, gets
a space before it; from then on a line that begins like one is one.

buildah knows an earlier stage by the image that came of it, and says so: `FROM 3f2a... AS web`. In
its own lines that becomes what the Dockerfile has there.

What is not here: a build without isolation, whose steps run without anything between. There all
output is taken for the builder's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

# Control characters that no builder prints stand around the word.
_MARK: Final = b"\x1e%s%s\x1e"
BEGIN: Final = b"begin"
END: Final = b"end"
_LOOKALIKE: Final = re.compile(
    rb"^(?=(?:\[\d{1,4}/\d{1,4}\] )?STEP \d{1,4}/\d{1,4}: |--> Using cache)", re.MULTILINE
)
# The beginning of a line that may still become one.
_MAY_BECOME: Final = re.compile(rb"[SE\-][^\n]{0,20}\Z|\[[\d/]{0,9}(?:\](?: [^\n]{0,20})?)?\Z")
# A stage that begins with an image that has no name, and the beginning of such a line.
_FROM_STAGE: Final = re.compile(
    rb"^(\[(\d{1,4})/\d{1,4}\] STEP \d{1,4}/\d{1,4}: FROM (?:--\S+ )*)[0-9a-f]{64}(?=\s|\Z)",
    re.MULTILINE,
)
_MAY_NAME: Final = re.compile(rb"\[\d{1,4}/\d{1,4}\] STEP \d{1,4}/\d{1,4}: FROM [^\n]{0,200}\Z")
# buildah's last words; they repeat the text of a step, which may have lines of its own.
_LAST_WORDS: Final = re.compile(rb"^Error: [^\n]*\n?", re.MULTILINE)


@dataclass(slots=True)
class Voices:
    """Reads output as it comes, and gives it back without the marks."""

    word: bytes
    bases: Sequence[str] = ()  # what each stage begins with, as the Dockerfile has it
    _begin: bytes = field(init=False)
    _end: bytes = field(init=False)
    _held: bytes = b""  # perhaps the beginning of a mark
    _line: bytes = b""  # perhaps the beginning of a line that reads like the builder's
    _in_step: bool = False
    _is_over: bool = False  # the builder said why it failed
    _at_line: bool = True

    def __post_init__(self) -> None:
        self._begin, self._end = mark(self.word, BEGIN), mark(self.word, END)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return what is known of them by now."""
        text, out = self._held + data, []
        while (found := self._next_mark(text)) is not None:
            at, which = found
            out.append(self._said(text[:at], whole=True))
            text = text[at + len(which) :]
            if self._in_step == (which is self._begin):
                continue
            self._in_step = not self._in_step
            if not self._at_line:  # a step's last line has no end; what follows is another voice's
                out.append(b"\n")
                self._at_line = True
        keep = self._part_of_a_mark(text)
        self._held = text[len(text) - keep :]
        out.append(self._said(text[: len(text) - keep], whole=False))
        return b"".join(out)

    def finish(self) -> bytes:
        """Return what was held back; nothing follows."""
        rest, self._held = self._held, b""
        return self._said(rest, whole=True)

    def _next_mark(self, text: bytes) -> tuple[int, bytes] | None:
        found = [(at, one) for one in (self._begin, self._end) if (at := text.find(one)) >= 0]
        return min(found, default=None)

    def _part_of_a_mark(self, text: bytes) -> int:
        """Return how many bytes at the end may be the beginning of a mark."""
        longest = len(self._begin) - 1
        at = text.rfind(b"\x1e", max(0, len(text) - longest))
        if at < 0:
            return 0
        rest = text[at:]
        return len(rest) if self._begin.startswith(rest) or self._end.startswith(rest) else 0

    def _said(self, part: bytes, *, whole: bool) -> bytes:
        """Return words of one voice; `whole`: another one follows."""
        text, self._line = self._line + part, b""
        if not text:
            return b""
        begins = text.rfind(b"\n") + 1
        rest = text[begins:]
        if not whole and (begins or self._at_line) and self._is_open(rest):
            self._line, text = rest, text[:begins]
        told = self._told(text)
        if text:
            self._at_line = text.endswith(b"\n")
        return told

    def _is_open(self, line: bytes) -> bool:
        """Say whether the beginning of a line may still become one that is told in another way."""
        if _MAY_BECOME.match(line):
            return True
        return not self._in_step and _MAY_NAME.match(line) is not None

    def _told(self, text: bytes) -> bytes:
        first, rest = b"", text
        if not self._at_line:  # the end of a line that was looked at
            cut = text.find(b"\n") + 1 or len(text)
            first, rest = text[:cut], text[cut:]
        if self._in_step or self._is_over:
            return first + _LOOKALIKE.sub(b" ", rest)
        said = _LAST_WORDS.search(rest)
        if said is None:
            return first + _FROM_STAGE.sub(self._with_its_name, rest)
        self._is_over = True
        own, last = rest[: said.end()], rest[said.end() :]
        return first + _FROM_STAGE.sub(self._with_its_name, own) + _LOOKALIKE.sub(b" ", last)

    def _with_its_name(self, found: re.Match[bytes]) -> bytes:
        number = int(found[2])
        base = self.bases[number - 1] if 0 < number <= len(self.bases) else ""
        # A variable can hold anything, and what buildah makes of one is not known here.
        is_a_word = base.isprintable() and len(base.split()) == 1
        return found[1] + base.encode() if is_a_word else found[0]


def mark(word: bytes, what: bytes) -> bytes:
    """Return the mark that says that a step's output begins or ends."""
    return _MARK % (word, what)
