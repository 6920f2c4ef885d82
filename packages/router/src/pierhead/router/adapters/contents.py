"""The content of contexts on a local disk: few large files, and an index of what is where.

A body is kept as it came: frames of compressed objects. When a page of a tree is complete, its part
of the archive is made of them, once, as frames too; from then on its objects are found there, and
the body can go. An archive is the parts of its pages, one after the other: what did not change
since the last build is neither read nor compressed again.

A file is flushed and has its final name before the index knows it, so after a crash there may be a
file too many, and never one too few. What a damaged disk makes of a file is noticed by whoever
reads it: zstd by its frames, a runner by the digest of the tree.
"""

import asyncio
import hashlib
import os
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from pierhead.protocol.archive import END, Kind, header, padding
from pierhead.protocol.errors import Invalid, Unavailable
from pierhead.protocol.objects import (
    ALONE_BYTES,
    BODY_BYTES_MAX,
    FRAME_BYTES,
    Frame,
    FrameError,
    compressed,
    frames,
    holds,
    inside,
)
from pierhead.protocol.plan import CONTEXT_BYTES_MAX
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import Entry
from pierhead.router.adapters.sql.content_index import ContentIndex, Place, Segment
from pierhead.router.ports.contexts import Archive, NewPage, SealedPage
from pierhead.server.disk import leave_room, storage_errors
from pierhead.server.log import get_logger
from pierhead.server.stretch import Stretch
from pierhead.server.threads import in_thread

ABANDONED_SECONDS: Final = 24 * 3600
_STRAY_SECONDS: Final = 3600
log = get_logger()
_FRAMES_HELD: Final = 8
_END: Final = compressed(END)


class FileContents:
    """The contents of all projects, below one folder."""

    def __init__(self, folder: Path, index: ContentIndex, *, new_id: Callable[[], str]) -> None:
        self._folder = folder
        self._index = index
        self._new_id = new_id
        # Making a part reads files that another part makes unneeded.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fresh: set[str] = set()  # bodies that came since this process began

    @classmethod
    async def open(cls, data: Path, *, new_id: Callable[[], str]) -> "FileContents":
        """Open what is below the data folder of a control plane."""
        folder = data / "contexts"
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, await ContentIndex.open(data / "contexts.db"), new_id=new_id)

    async def close(self) -> None:
        """Finish what waits, then close."""
        await self._index.close()

    async def keep(self, project: str, body: AsyncIterator[bytes]) -> int:
        """Keep the objects of a body; what came before a cut is kept, too.

        When the disk is full, what no context uses yet goes: others need the room, and whoever
        tries again is asked for it again.
        """
        try:
            return await self._keep_all(project, body)
        except Unavailable as error:
            if error.problem.slug == "storage-full":
                with suppress(Unavailable):  # not even that can be noted
                    await self._drop(project, waiting_seconds=0)
            raise

    async def _keep_all(self, project: str, body: AsyncIterator[bytes]) -> int:
        if await self._index.waiting_bytes(project) > CONTEXT_BYTES_MAX:
            detail = f"{project} has uploads of over {CONTEXT_BYTES_MAX} bytes that no context uses"
            hint = "finish one of them, or try again tomorrow"
            raise Invalid(problem("too-large", detail, hint=hint))
        writer = await asyncio.to_thread(_Writer, self._folder, self._new_id())
        try:
            async for frame in frames(_bounded(body)):
                await in_thread(writer.add_body_frame, frame)
        except FrameError as error:
            raise Invalid(problem("invalid-document", f"not a body of objects: {error}")) from error
        finally:
            # A client that was cut asks what is missing, and goes on from here.
            await in_thread(writer.finish)
            await self._keep(project, writer)
        return len(writer.places)

    async def _keep(self, project: str, writer: "_Writer") -> None:
        added = writer.places and await self._index.add_body(
            project, writer.id, writer.size, writer.places, time.time()
        )
        if added:
            self._fresh.add(writer.id)
        else:
            await self._drop(project)

    async def lacking(self, project: str, digests: Sequence[bytes]) -> list[bytes]:
        """Return which objects the project does not have, in order and once each."""
        known = await self._index.known(project, digests)
        return [digest for digest in dict.fromkeys(digests) if digest not in known]

    async def read(self, project: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return small objects."""
        async with self._turns[project], self._mending():
            places = await self._index.places(project, digests)
            frames_read = _Frames(self._folder, self._fresh)
            return await asyncio.to_thread(
                lambda: {digest: frames_read.read(place) for digest, place in places.items()}
            )

    async def sealed(self, project: str, digests: Sequence[bytes]) -> dict[bytes, SealedPage]:
        """Return the pages whose part of the archive is made."""
        return await self._index.sealed(project, digests)

    async def seal(self, project: str, pages: Sequence[NewPage]) -> None:
        """Make the parts of the archive for pages all of whose objects are there."""
        async with self._turns[project], self._mending():
            done = await self._index.sealed(project, [new.digest for new in pages])
            pages = [new for new in pages if new.digest not in done]
            if not pages:
                return
            wanted = {digest for new in pages for e in new.entries for digest, _ in e.chunks()}
            places = await self._index.places(project, [*wanted])
            if len(places) < len(wanted):
                detail = "content of the context is gone again"
                raise Unavailable(problem("dependency-unavailable", detail, hint="try again"))
            writer = await asyncio.to_thread(_Writer, self._folder, self._new_id())
            sealer = _Sealer(writer, _Frames(self._folder, self._fresh), places)
            try:
                sealed = await in_thread(lambda: [sealer.seal(page) for page in pages])
            except BaseException:
                writer.discard()
                raise
            await in_thread(writer.finish)
            await self._index.add_sealed(
                project, writer.id, writer.size, sealed, writer.places, time.time()
            )
        await self._drop(project)

    @asynccontextmanager
    async def _mending(self) -> AsyncIterator[None]:
        """Forget a damaged file, with all that was found in it: it is asked for again then."""
        try:
            yield
        except _Damaged as error:
            log.error("contents.damaged", file=error.file)
            await self._index.drop_file(error.file)
            await self._unlink([error.file])
            detail = "a part of the content was damaged on the control plane's disk"
            hint = "try again: it is asked for anew; and look after that disk"
            raise Unavailable(problem("dependency-unavailable", detail, hint=hint)) from error

    async def _drop(self, project: str, waiting_seconds: float = ABANDONED_SECONDS) -> None:
        """Remove what nothing needs, and what has waited so long for a context."""
        async with self._turns[project]:
            before = time.time() - waiting_seconds
            await self._unlink(await self._index.drop_unneeded(before, project))

    async def save(self, project: str, digest: str, pages: bytes) -> None:
        """Remember which pages a context has."""
        await self._index.save_context(project, digest, pages)

    async def archive(self, project: str, digest: str) -> Archive | None:
        """Return the archive of a context."""
        segments = await self._index.segments(project, digest)
        return None if segments is None else _archive(self._folder, segments)

    async def forget(self, project: str, digest: str) -> None:
        """Forget a context."""
        await self._index.forget_context(project, digest)

    async def forget_project(self, project: str) -> None:
        """Remove all that a project has."""
        async with self._turns[project]:
            await self._unlink(await self._index.drop_project(project))

    async def sweep(self) -> None:
        """Remove what nothing needs, and files that a crash left over."""
        now = time.time()
        await self._unlink(await self._index.drop_unneeded(now - ABANDONED_SECONDS))
        known = await self._index.files()
        for file in self._folder.iterdir():
            with suppress(FileNotFoundError):
                stray = file.name not in known and now - file.stat().st_mtime > _STRAY_SECONDS
                if stray:
                    file.unlink()

    async def _unlink(self, files: Sequence[str]) -> None:
        self._fresh.difference_update(files)
        for file in files:
            await in_thread(lambda path: path.unlink(missing_ok=True), self._folder / file)


class _Damaged(Exception):
    """A file cannot be read any more."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class _Writer:
    """Writes one file of frames."""

    def __init__(self, folder: Path, file_id: str) -> None:
        self.id = file_id
        self.size = 0
        self.places: dict[bytes, Place] = {}
        self._path = folder / file_id
        self._file: BinaryIO
        with storage_errors():
            self._file = self._path.with_suffix(".new").open("xb")

    def add_body_frame(self, frame: Frame) -> None:
        """Add a frame as it came, after looking at what is in it."""
        objects = (
            (hashlib.sha256(data).digest(), inner, len(data)) for inner, data in frame.objects()
        )
        self.add_frame(frame.packed, objects)

    def add_frame(self, packed: bytes, objects: Iterable[tuple[bytes, int, int]]) -> None:
        """Add a frame; `objects` are digests, and where they are in it."""
        begin, found = self.size, [*objects]  # looking at them refuses what is no frame
        self._write(packed)
        for digest, inner, size in found:
            self.places.setdefault(digest, Place(self.id, begin, len(packed), inner, size))

    def finish(self) -> None:
        """Flush it and give it its final name; nothing is left of one that has nothing in it.

        Raises:
            Unavailable: the disk is full or broken; then, too, nothing is left of it.
        """
        with storage_errors():
            try:
                self._finish()
            except OSError:
                self.discard()
                raise

    def _finish(self) -> None:
        with self._file as file:
            if not self.size:
                self._path.with_suffix(".new").unlink()
                return
            file.flush()
            os.fsync(file.fileno())
            self._path.with_suffix(".new").rename(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Leave nothing of it, also on a disk that is full: what waits cannot be written then."""
        with suppress(OSError):
            self._file.close()
        for path in (self._path.with_suffix(".new"), self._path):
            with suppress(OSError):  # the sweep removes it later
                path.unlink()

    def _write(self, packed: bytes) -> None:
        with storage_errors():
            leave_room(self._file.fileno())
            self._file.write(packed)
            self._file.flush()
        self.size += len(packed)


class _Frames:
    """Reads objects; the frames that were used last are held, since objects have neighbours."""

    def __init__(self, folder: Path, fresh: Container[str]) -> None:
        self._folder = folder
        self._fresh = fresh  # files whose content was looked at a moment ago
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def read(self, place: Place) -> bytes:
        """Return an object."""
        key = place.file, place.offset
        raw = self._held.get(key)
        if raw is None:
            raw = self._held[key] = self._inside(self._packed(place), place)
            if len(self._held) > _FRAMES_HELD:
                self._held.popitem(last=False)
        return raw[place.inner : place.inner + place.size]

    def alone(self, place: Place) -> bytes | None:
        """Return the frame of an object, still compressed, if it holds nothing else."""
        if place.inner or place.size < ALONE_BYTES:
            return None
        packed = self._packed(place)
        if holds(packed) != place.size:
            return None
        if place.file not in self._fresh:
            self._inside(packed, place)
        return packed

    def _inside(self, packed: bytes, place: Place) -> bytes:
        try:
            return inside(packed)
        except FrameError as error:
            raise _Damaged(place.file) from error

    def _packed(self, place: Place) -> bytes:
        try:
            with (self._folder / place.file).open("rb") as file:
                return os.pread(file.fileno(), place.length, place.offset)
        except OSError as error:
            raise _Damaged(place.file) from error


@dataclass(slots=True)
class _Sealer:
    """Makes parts of archives."""

    writer: _Writer
    frames: _Frames
    places: dict[bytes, Place]
    _raw: bytearray = field(default_factory=bytearray)
    _objects: list[tuple[bytes, int, int]] = field(default_factory=list)

    def seal(self, new: NewPage) -> tuple[SealedPage, Segment]:
        """Write the part of one page."""
        begin, tar_bytes, files, size_bytes = self.writer.size, 0, 0, 0
        for entry in new.entries:
            tar_bytes += self._entry(entry)
            files += entry.kind is not Kind.FOLDER
            size_bytes += entry.size
        self._flush()
        page = SealedPage(new.digest, new.page, files, size_bytes, tar_bytes)
        return page, Segment(self.writer.id, begin, self.writer.size - begin)

    def _entry(self, entry: Entry) -> int:
        head = header(entry.member())
        self._raw += head
        for digest, size in entry.chunks():
            self._chunk(digest, size)
        pad = padding(entry.size)
        self._raw += bytes(pad)
        return len(head) + entry.size + pad

    def _chunk(self, digest: bytes, size: int) -> None:
        if packed := self.frames.alone(self.places[digest]):
            self._flush()
            self.writer.add_frame(packed, [(digest, 0, size)])
            return
        if len(self._raw) + size > FRAME_BYTES:
            self._flush()
        self._objects.append((digest, len(self._raw), size))
        self._raw += self.frames.read(self.places[digest])

    def _flush(self) -> None:
        if self._raw:
            self.writer.add_frame(compressed(bytes(self._raw)), self._objects)
            self._raw.clear()
            self._objects = []


def _archive(folder: Path, segments: Sequence[Segment]) -> Archive:
    """Return an archive: the parts of its pages, and the end of a tar."""
    joined = [*_joined(segments)]
    told = repr(joined).encode()  # the names of files are never used again
    stretches = [Stretch(folder / part.file, part.offset, part.length) for part in joined]
    return Archive([*stretches, _END], hashlib.sha256(told).hexdigest())


def _joined(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Join parts that lie one after the other in the same file."""
    held: Segment | None = None
    for part in segments:
        if held is not None and (held.file, held.offset + held.length) == part[:2]:
            held = held._replace(length=held.length + part.length)
            continue
        if held is not None:
            yield held
        held = part
    if held is not None:
        yield held


async def _bounded(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    left = BODY_BYTES_MAX
    async for chunk in body:
        left -= len(chunk)
        if left < 0:
            raise Invalid(problem("too-large", f"a body has at most {BODY_BYTES_MAX} bytes"))
        yield chunk
