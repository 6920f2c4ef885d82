"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import StreamingResponse

# Under every proxy's idle limit that we know of; the shortest common one is 30 s.
COMMENT_SECONDS: Final = 15.0


def frame(cursor: str, data: bytes) -> bytes:
    """Return one event. `data` is JSON, so it has no line breaks."""
    return b"id: " + cursor.encode() + b"\ndata: " + data + b"\n\n"


class EventStream(StreamingResponse):
    """Sends frames as they come, and a comment when none came for a while."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_alive(frames), media_type="text/event-stream", headers=headers)


async def _alive(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    following: asyncio.Task[bytes] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(_next(frames))
            done, _ = await asyncio.wait({following}, timeout=COMMENT_SECONDS)
            if not done:
                yield b":\n\n"
                continue
            chunk = following.result()
            following = None
            if not chunk:
                return
            yield chunk
    finally:
        if following is not None:
            following.cancel()


async def _next(frames: AsyncIterator[bytes]) -> bytes:
    """Return the next frame, or nothing at the end."""
    return await anext(frames, b"")
