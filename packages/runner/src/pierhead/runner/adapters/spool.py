"""The log of a build: taken from the backend at once, sent to the router as fast as it takes it.

The build never waits for the network: output goes to a file, and is read from there. A log over the
limit keeps its head and its tail, because the reason of a failure is at the end.
"""

import asyncio
import hashlib
import re
from collections import deque
from pathlib import Path
from typing import Final

from pierhead.protocol.errors import Refused, Unavailable
from pierhead.protocol.lease import LogAccepted
from pierhead.runner.domain.progress import LINE_BYTES_MAX
from pierhead.runner.ports import Hold

PART_BYTES: Final = 64 * 1024
# Counted from the first byte that was not sent, so a steady trickle cannot put it off.
FLUSH_SECONDS: Final = 0.25
HEAD_BYTES: Final = 47 * 1024**2
TAIL_BYTES: Final = 16 * 1024**2
AGAIN_SECONDS: Final = 0.5
# Only a line feed ends a line: `splitlines` would also break at carriage returns of progress bars.
_LINES: Final = re.compile(rb"[^\n]*\n|[^\n]+")


class LogSpool:
    """One attempt's log."""

    def __init__(self, file: Path, hold: Hold) -> None:
        self._file = file.open("w+b", buffering=0)
        self._hold = hold
        self._hash = hashlib.sha256()
        self._size = 0
        self._sent = 0
        self._line = 0  # bytes since the last line break
        self._tail: deque[bytes] = deque()
        self._tail_size = self._dropped = 0
        self._closed = False
        self._more = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Take output of the build. Never waits, never fails the build."""
        data = self._cut_lines(data)
        if self._size < HEAD_BYTES and not self._dropped:
            self._store(data)
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size > TAIL_BYTES:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._dropped += gone

    def close(self) -> None:
        """Say that no output follows. Saying it again is harmless."""
        if self._closed:
            return
        if self._dropped:
            self._store(b"\n[%d bytes of the log were left out here]\n" % self._dropped)
        for data in self._tail:
            self._store(data)
        self._tail.clear()
        self._file.close()
        self._closed = True
        self._more.set()

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._size

    @property
    def digest(self) -> str:
        """The digest of the whole log."""
        return "sha256:" + self._hash.hexdigest()

    async def send(self) -> None:
        """Send the log until it is closed and all of it has arrived.

        Raises:
            LeaseLost, TokenRefused: the router does not want it any more.
        """
        while True:
            await self._more.wait()
            if not self._closed and self._size - self._sent < PART_BYTES:
                await asyncio.sleep(FLUSH_SECONDS)
            self._more.clear()
            while self._sent < self._size:
                await self._send_part()
            if self._closed:
                return

    async def _send_part(self) -> None:
        # 256 KiB is what one request may hold.
        part = await asyncio.to_thread(self._read, self._sent, 4 * PART_BYTES)
        try:
            accepted: LogAccepted = await self._hold.append_log(self._sent, part)
        except Unavailable:
            await asyncio.sleep(AGAIN_SECONDS)
            return
        except Refused as refused:
            if refused.problem.next_offset is None:
                raise
            self._sent = refused.problem.next_offset
            return
        self._sent = accepted.next_offset

    def _store(self, data: bytes) -> None:
        """Append to the file; what a full disk does not take is left out."""
        try:
            taken = self._file.write(data)
        except OSError:
            taken = 0
        self._dropped += len(data) - taken
        self._hash.update(data[:taken])
        self._size += taken
        self._more.set()

    def _read(self, offset: int, limit: int) -> bytes:
        with open(self._file.name, "rb") as file:
            file.seek(offset)
            return file.read(limit)

    def _cut_lines(self, data: bytes) -> bytes:
        """Break lines that no viewer could show."""
        out = []
        for line in _LINES.findall(data):
            while self._line + len(line) > LINE_BYTES_MAX:
                room = LINE_BYTES_MAX - self._line
                out.append(line[:room] + b"\n")
                line, self._line = line[room:], 0
            out.append(line)
            self._line = 0 if line.endswith(b"\n") else self._line + len(line)
        return b"".join(out)
