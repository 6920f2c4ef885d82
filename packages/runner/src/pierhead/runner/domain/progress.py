"""What buildah's output says about how far it is. It writes for people, one line at a time."""

import re
from dataclasses import dataclass, field
from typing import Final

from pierhead.protocol.result import CacheUse

_STEP: Final = re.compile(rb"^(\[\d{1,4}/\d{1,4}\] )?STEP (\d{1,4}/\d{1,4}): (.*)$")
LINE_BYTES_MAX: Final = 64 * 1024
TAIL_LINES: Final = 40


@dataclass(slots=True)
class Progress:
    """Reads output as it comes; remembers the step, its last lines, and the cache."""

    steps: int = 0
    cached: int = 0
    step: str | None = None
    tail: list[str] = field(default_factory=list)
    _line: bytes = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            self._take(line)
        self._line = rest[-LINE_BYTES_MAX:]

    def finish(self) -> None:
        """Take what is left as a line."""
        if self._line:
            self._take(self._line)
            self._line = b""

    def cache(self) -> CacheUse:
        """Return how many steps there were, and how many the cache had."""
        return CacheUse(steps=self.steps, cached=self.cached)

    def _take(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        found = _STEP.match(line)
        if found is not None:
            self.steps += 1
            step = (found[1] or b"") + found[2] + b" " + found[3]
            self.step = step.decode("utf-8", "replace")[:1000]
            self.tail.clear()
            return
        if text.startswith("--> Using cache"):
            self.cached += 1
        self.tail.append(text[:1000])
        del self.tail[:-TAIL_LINES]
