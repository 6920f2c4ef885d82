"""A step of a build that goes on until the test lets it end, however long all else takes."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from tests.sight import said_of

SHELL = "/bin/busybox"


class HeldStep:
    """Waits for a file in its own root, which the test puts there from outside.

    `before` and `after`: what else it does, in a shell.
    """

    def __init__(self, before: str = "", after: str = "") -> None:
        self._file = f"go-{uuid4().hex}"
        waits = f"until [ -e /{self._file} ]; do {SHELL} sleep 0.2; done"
        self._script = "; ".join(filter(None, (before, waits, after)))

    @property
    def words(self) -> list[str]:
        """What the step runs, where there is a busybox; no other process has these words."""
        return [SHELL, "sh", "-c", self._script]

    @property
    def line(self) -> str:
        """The step in a Dockerfile."""
        return f"RUN {json.dumps(self.words)}\n"

    @property
    def is_running(self) -> bool:
        """Say whether the step has begun, and not ended."""
        return any(self._processes())

    def let_go(self) -> None:
        """Let it end, wherever it has begun; the same step of another build waits by itself."""
        for pid in self._processes():
            with contextlib.suppress(OSError):  # it has ended
                Path(f"/proc/{pid}/root", self._file).touch()

    def _processes(self) -> Iterator[int]:
        mine = "\0".join(self.words)
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            if said_of(pid, "cmdline").rstrip("\0") == mine:
                yield pid


@contextlib.contextmanager
def held_step(before: str = "", after: str = "") -> Iterator[HeldStep]:
    """Make such a step; at the end nothing is held any more, whatever happened."""
    step = HeldStep(before, after)
    try:
        yield step
    finally:
        step.let_go()
