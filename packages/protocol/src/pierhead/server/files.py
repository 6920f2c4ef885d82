"""Files as an answer, whole or one range of them, without the bytes passing through this process.

Where the connection can (the ASGI extension `http.response.zerocopysend`), the kernel moves them
from the file to the socket; elsewhere, under TLS, they are read in pieces that are worth their
thread hops.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pierhead.server.log import get_logger
from pierhead.server.stretch import Stretch
from pierhead.server.threads import in_thread

ZERO_COPY: Final = "http.response.zerocopysend"
CUT: Final = "pierhead.response.cut"  # the message that ends an answer before its length
PIECE_BYTES: Final = 1024 * 1024
log = get_logger()
_RANGE: Final = re.compile(r"bytes=(\d{0,15})-(\d{0,15})\Z")


class ShortFile(OSError):
    """A file ends before it did when it was opened."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a file has only {size} bytes left")


class RangeBody(ABC, Response):
    """Answers with bytes that do not change, or one range of them.

    `etag`: what `If-Range` is compared with.
    """

    def __init__(self, size: int, *, media_type: str, etag: str, headers: dict[str, str]) -> None:
        self._size = size
        self.etag = f'"{etag}"'
        super().__init__(
            media_type=media_type,
            headers={**headers, "ETag": self.etag, "Accept-Ranges": "bytes"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what was asked for."""
        asked = _asked(Request(scope), self._size, self.etag)
        start, end = asked or (0, self._size)
        if start >= end and asked is not None:
            self.status_code, end = 416, start
            self.headers["Content-Range"] = f"bytes */{self._size}"
        elif asked is not None:
            self.status_code = 206
            self.headers["Content-Range"] = f"bytes {start}-{end - 1}/{self._size}"
        self.headers["Content-Length"] = str(end - start)
        begin = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **begin})
        if scope["method"] != "HEAD" and start < end:
            await self._send_or_cut(scope, send, start, end)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_or_cut(self, scope: Scope, send: Send, start: int, end: int) -> None:
        """Send bytes; when the disk does not give them all, the reader must not take it for all."""
        try:
            await self.send_range(scope, send, start, end)
        except OSError as error:
            log.error("answer.cut", path=scope["path"], error=str(error))
            if CUT not in scope.get("extensions", {}):
                raise
            await send({"type": CUT})

    @abstractmethod
    async def send_range(self, scope: Scope, send: Send, start: int, end: int) -> None:
        """Send the bytes from `start` to before `end`.

        Raises:
            OSError: they are not there any more.
        """


class FileBody(RangeBody):
    """Answers with a file.

    Raises:
        FileNotFoundError: it is not there.
    """

    def __init__(self, path: Path, *, media_type: str, etag: str, headers: dict[str, str]) -> None:
        self.file = path.open("rb", buffering=0)
        size = os.fstat(self.file.fileno()).st_size
        super().__init__(size, media_type=media_type, etag=etag, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what was asked for."""
        with self.file:
            await super().__call__(scope, receive, send)

    async def send_range(self, scope: Scope, send: Send, start: int, end: int) -> None:
        """Send it from the file."""
        await _send_stretch(scope, send, self.file.fileno(), start, end)


class PartsBody(RangeBody):
    """Answers with parts, one after the other."""

    def __init__(self, parts: Sequence[Stretch | bytes], *, media_type: str, etag: str) -> None:
        self._parts = parts
        size = sum(map(_length, parts))
        super().__init__(size, media_type=media_type, etag=etag, headers={})

    async def send_range(self, scope: Scope, send: Send, start: int, end: int) -> None:
        """Send it from the parts that it goes over."""
        at = 0
        for part in self._parts:
            low, high = max(start - at, 0), min(end - at, _length(part))
            at += _length(part)
            if low >= high:
                continue
            if isinstance(part, bytes):
                body = part[low:high]
                await send({"type": "http.response.body", "body": body, "more_body": True})
                continue
            with part.path.open("rb", buffering=0) as file:
                begin = part.offset
                await _send_stretch(scope, send, file.fileno(), begin + low, begin + high)


def _length(part: Stretch | bytes) -> int:
    return len(part) if isinstance(part, bytes) else part.length


def _asked(request: Request, size: int, etag: str) -> tuple[int, int] | None:
    """Return the range that was asked for, empty when there is none; none: all of the file."""
    found = _RANGE.match(request.headers.get("range", ""))
    if found is None or request.headers.get("if-range", etag) != etag:
        return None  # several ranges, or another unit: a server may answer with the whole
    first, last = found[1], found[2]
    if not first:
        return (max(size - int(last), 0), size) if last and int(last) else (size, size)
    return int(first), min(int(last) + 1, size) if last else size


async def _send_stretch(scope: Scope, send: Send, file: int, start: int, end: int) -> None:
    if ZERO_COPY in scope.get("extensions", {}):
        await send(
            {
                "type": ZERO_COPY,
                "file": file,
                "offset": start,
                "count": end - start,
                "more_body": True,
            }
        )
        return
    while start < end:
        piece = await in_thread(os.pread, file, min(PIECE_BYTES, end - start), start)
        if not piece:
            raise ShortFile(start)
        start += len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
