"""The router's contexts in memory, with the rules of the port."""

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

from pierhead.protocol.archive import END, Kind, header, padding
from pierhead.protocol.errors import Invalid, Unavailable
from pierhead.protocol.objects import FrameError, compressed, frames
from pierhead.protocol.problem import problem
from pierhead.router.ports.contexts import Archive, NewPage, SealedPage


class MemoryContents:
    """What is in contexts, for as long as this lives."""

    def __init__(self) -> None:
        self._objects: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
        self._sealed: defaultdict[str, dict[bytes, tuple[SealedPage, bytes]]] = defaultdict(dict)
        self._contexts: dict[tuple[str, str], bytes] = {}

    async def keep(self, project: str, body: AsyncIterator[bytes]) -> int:
        came: dict[bytes, bytes] = {}
        try:
            async for frame in frames(body):
                for _, data in frame.objects():
                    came[hashlib.sha256(data).digest()] = data
        except FrameError as error:
            raise Invalid(problem("invalid-document", f"not a body of objects: {error}")) from error
        finally:
            self._objects[project] |= came
        return len(came)

    async def lacking(self, project: str, digests: Sequence[bytes]) -> list[bytes]:
        return [one for one in dict.fromkeys(digests) if one not in self._objects[project]]

    async def read(self, project: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        mine = self._objects[project]
        return {one: mine[one] for one in digests if one in mine}

    async def sealed(self, project: str, digests: Sequence[bytes]) -> dict[bytes, SealedPage]:
        mine = self._sealed[project]
        return {one: mine[one][0] for one in digests if one in mine}

    async def seal(self, project: str, pages: Sequence[NewPage]) -> None:
        made = {new.digest: self._part(project, new) for new in pages}
        self._sealed[project] |= made
        for digest in made:
            self._objects[project].pop(digest, None)  # it is in the page now

    def _part(self, project: str, new: NewPage) -> tuple[SealedPage, bytes]:
        mine, tar = self._objects[project], b""
        for entry in new.entries:
            chunks = [mine.get(digest) for digest, _ in entry.chunks()]
            if None in chunks:
                raise Unavailable(problem("dependency-unavailable", "content is gone again"))
            content = b"".join(chunk for chunk in chunks if chunk is not None)
            tar += header(entry.member()) + content + bytes(padding(entry.size))
        files = sum(entry.kind is not Kind.FOLDER for entry in new.entries)
        size = sum(entry.size for entry in new.entries)
        return SealedPage(new.digest, new.page, files, size, len(tar)), tar

    async def save(self, project: str, digest: str, pages: bytes) -> None:
        self._contexts[project, digest] = pages

    async def archive(self, project: str, digest: str) -> Archive | None:
        pages = self._contexts.get((project, digest))
        if pages is None:
            return None
        wanted = [pages[at : at + 32] for at in range(0, len(pages), 32)]
        if any(page not in self._sealed[project] for page in wanted):
            return None
        tar = b"".join(self._sealed[project][page][1] for page in wanted)
        return Archive([compressed(tar), compressed(END)], hashlib.sha256(tar).hexdigest())

    async def forget(self, project: str, digest: str) -> None:
        self._contexts.pop((project, digest), None)

    async def forget_project(self, project: str) -> None:
        self._objects.pop(project, None)
        self._sealed.pop(project, None)
        for key in [key for key in self._contexts if key[0] == project]:
            del self._contexts[key]

    async def sweep(self) -> None:
        """What nothing needs takes no room that anybody misses here."""
