"""Brings a context to the control plane: only what it lacks, in bodies that any proxy takes.

Nothing of an upload is remembered here. Whatever was cut, on either side, the next question says
what is missing then, so going on and beginning are the same.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.pack import Packed
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.objects import ALONE_BYTES, FRAME_BYTES, frame
from pierhead.protocol.plan import ContextOffer, ContextRef
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import DIGEST_BYTES

# A cut loses at most one body; a proxy that buffers has it in memory.
BODY_BYTES: Final = 8 * 1024 * 1024
PATIENCE_SECONDS: Final = 60.0
_FUTILE_MAX: Final = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What an upload took."""

    context: ContextRef
    sent_bytes: int  # of bodies, compressed
    files: int  # with content that was missing


async def upload(
    client: RouterClient,
    project: str,
    packed: Packed,
    progress: Callable[[int, int], None] = lambda _done, _missing: None,
) -> Sent:
    """Upload a context. `progress` hears how many bytes of content are there, and were missing.

    Raises:
        PierheadError: the control plane refuses it, or was away for a minute.
        Invalid: a file was changed since it was packed.
    """
    pages = dict(packed.described())
    offer = ContextOffer(project=project, digest=packed.digest, pages=b"".join(pages))
    course = _Course(client, project, packed, pages, progress)
    while True:
        state = await patiently(
            lambda: client.offer_context(offer), PATIENCE_SECONDS, through_full_disk=False
        )
        if state.context is not None:
            return Sent(
                context=state.context, sent_bytes=course.sent_bytes, files=len(course.files)
            )
        await course.send(_split(state.missing))


class _Course:
    """One upload under way."""

    def __init__(
        self,
        client: RouterClient,
        project: str,
        packed: Packed,
        pages: dict[bytes, bytes],
        progress: Callable[[int, int], None],
    ) -> None:
        self._client = client
        self._project = project
        self._packed = packed
        self._pages = pages
        self._progress = progress
        self._sent: set[bytes] = set()
        self._futile = 0
        self._done_bytes = 0
        self._missing_bytes = 0
        self.sent_bytes = 0
        self.files: set[bytes] = set()

    async def send(self, missing: list[bytes]) -> None:
        """Send objects, while the next ones are read and compressed."""
        self._note(missing)
        bodies = bodies_of(self._read(digest) for digest in missing)
        following = asyncio.create_task(asyncio.to_thread(next, bodies, None))
        try:
            while (body := await following) is not None:
                following = asyncio.create_task(asyncio.to_thread(next, bodies, None))
                await self._send(body[0])
                self._done_bytes += body[1]
                self._progress(self._done_bytes, self._missing_bytes)
        finally:
            await asyncio.gather(following, return_exceptions=True)

    async def _send(self, body: bytes) -> None:
        await patiently(
            lambda: self._client.send_objects(self._project, body),
            PATIENCE_SECONDS,
            through_full_disk=False,
        )
        self.sent_bytes += len(body)

    def _note(self, missing: list[bytes]) -> None:
        self._futile = self._futile + 1 if missing and self._sent.issuperset(missing) else 0
        if self._futile == _FUTILE_MAX:
            detail = "the control plane does not keep what is sent to it"
            raise Unavailable(problem("dependency-unavailable", detail, hint="see its log"))
        self._sent.update(missing)
        for digest in missing:
            source = self._packed.sources.get(digest)
            if source is None:
                self._missing_bytes += len(self._pages.get(digest, b""))
            else:
                self._missing_bytes += source.size
                self.files.add(source.name)

    def _read(self, digest: bytes) -> bytes:
        page = self._pages.get(digest)
        if page is None and digest not in self._packed.sources:
            detail = "the control plane asks for content that was never offered to it"
            raise Unavailable(problem("dependency-unavailable", detail))
        return self._packed.read(digest) if page is None else page


def bodies_of(objects: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield bodies, and how many bytes of objects are in each."""
    body, plain = b"", 0
    for group in _groups(objects):
        packed = frame(group)
        if body and len(body) + len(packed) > BODY_BYTES:
            yield body, plain
            body, plain = b"", 0
        body += packed
        plain += sum(map(len, group))
    if body:
        yield body, plain


def _groups(objects: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield objects for one frame each."""
    group: list[bytes] = []
    size = 0
    for data in objects:
        if len(data) >= ALONE_BYTES:
            yield [data]
            continue
        if group and size + len(data) > FRAME_BYTES:
            yield group
            group, size = [], 0
        group.append(data)
        size += len(data)
    if group:
        yield group


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
