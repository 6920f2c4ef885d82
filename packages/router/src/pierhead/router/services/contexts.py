"""Contexts come in by what is missing of them, and belong to the project that brought it.

A submitter says what a tree is: the digests of the pages that describe it. It hears what the
project lacks, first of the pages, then of the content; sends that; and asks again, until nothing is
missing. Every call can be repeated, in any order, and nothing is remembered of a caller.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pierhead.protocol.archive import END, ArchiveError
from pierhead.protocol.digest import same_digest
from pierhead.protocol.errors import IntegrityError, Invalid
from pierhead.protocol.plan import (
    CONTEXT_BYTES_MAX,
    CONTEXT_FILES_MAX,
    ContextOffer,
    ContextRef,
    ContextState,
    ObjectsKept,
)
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import DIGEST_BYTES, TreeDigest, descriptions, parse_page
from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.domain.token import Principal, require_project
from pierhead.router.ports.contexts import Archive, ContextStore, NewPage, SealedPage
from pierhead.router.ports.store import Store
from pierhead.router.ports.system import Clock

# An answer names so many missing objects at most: a third of what a document may be.
MISSING_MAX: Final = 8192
# A call makes parts of so much content, which takes a second or two; then the caller asks again.
SEAL_BYTES: Final = 128 * 1024 * 1024
SEAL_SECONDS: Final = 10.0  # a caller is held no longer
# A context that no build used for so long is forgotten; submitting it again means sending it again.
KEPT: Final = timedelta(days=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """What submitters may do with contexts, and runners with theirs."""

    store: Store
    contents: ContextStore
    clock: Clock
    sealing: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def offer(self, principal: Principal, offer: ContextOffer) -> ContextState:
        """Say what is missing of a context; when nothing is, it is there from now on.

        Raises:
            Invalid: it is too large, or its description is damaged.
            IntegrityError: the pages are not those of the tree that was said.
        """
        require_project(principal, offer.project)
        known = await self._known(offer.project, offer.digest)
        if known is not None:
            return ContextState(context=known)
        if len(offer.pages) % DIGEST_BYTES:
            raise InvalidRequest("the digests of pages have 32 bytes each")
        pages = _split(offer.pages)
        sealed = await self.contents.sealed(offer.project, pages)
        fresh = [page for page in dict.fromkeys(pages) if page not in sealed]
        missing = await self._missing(offer.project, fresh, [*sealed.values()])
        if missing:
            return ContextState(missing=b"".join(missing[:MISSING_MAX]))
        sealed = await self.contents.sealed(offer.project, pages)
        if any(page not in sealed for page in pages):
            return ContextState()
        return ContextState(context=await self._finish(offer, [sealed[page] for page in pages]))

    async def keep(
        self, principal: Principal, project: str, body: AsyncIterator[bytes]
    ) -> ObjectsKept:
        """Keep content that a context needs."""
        require_project(principal, project)
        return ObjectsKept(objects=await self.contents.keep(project, body))

    async def archive(self, project: str, digest: str) -> Archive | None:
        """Return the archive of a context, for the attempt that builds it."""
        return await self.contents.archive(project, digest)

    async def sweep(self) -> None:
        """Forget contexts that no build used for long, and remove what nothing needs."""
        before = self.clock.now() - KEPT
        for project, digest in await self.store.write(
            lambda ledger: ledger.forget_contexts(before)
        ):
            await self.contents.forget(project, digest)
        await self.contents.sweep()

    async def _known(self, project: str, digest: str) -> ContextRef | None:
        known = await self.store.read(lambda ledger: ledger.context(project, digest))
        if known is None or await self.contents.archive(project, digest) is None:
            return None
        return known

    async def _missing(
        self, project: str, fresh: Sequence[bytes], sealed: Sequence[SealedPage]
    ) -> list[bytes]:
        """Return what is missing of pages, and make the parts of some of those that are whole."""
        if not fresh:
            return []
        missing = await self.contents.lacking(project, fresh)
        if missing:
            return missing
        found = await self.contents.read(project, fresh)
        parsed = await asyncio.to_thread(
            lambda: [_parsed(digest, found[digest]) for digest in fresh if digest in found]
        )
        _require_bounds(
            sum(part.size_bytes for part in sealed)
            + sum(e.size for new in parsed for e in new.entries),
            sum(part.files for part in sealed) + sum(len(new.entries) for new in parsed),
        )
        wanted = [digest for new in parsed for entry in new.entries for digest, _ in entry.chunks()]
        missing = await self.contents.lacking(project, wanted)
        absent = frozenset(missing)
        whole = [new for new in parsed if not absent.intersection(_chunks(new))]
        if whole:
            await self._seal(project, _some(whole))
        return missing

    async def _seal(self, project: str, pages: Sequence[NewPage]) -> None:
        """Make parts; a caller who goes, or who waits for too long, does not end it."""
        work = asyncio.create_task(self.contents.seal(project, pages))
        self.sealing.add(work)
        work.add_done_callback(self.sealing.discard)
        await asyncio.wait({work}, timeout=SEAL_SECONDS)
        if work.done():
            work.result()

    async def _finish(self, offer: ContextOffer, sealed: Sequence[SealedPage]) -> ContextRef:
        tree = TreeDigest()
        for part in sealed:
            tree.add(descriptions(part.page))
        if not same_digest(tree.digest(), offer.digest):
            detail = f"the pages describe {tree.digest()}, not {offer.digest}"
            raise IntegrityError(problem("digest-mismatch", detail))
        size, files = sum(part.size_bytes for part in sealed), sum(part.files for part in sealed)
        _require_bounds(size, files)
        context = ContextRef(
            digest=offer.digest,
            size_bytes=size,
            unpacked_bytes=sum(part.tar_bytes for part in sealed) + len(END),
            files=files,
        )
        await self.contents.save(offer.project, offer.digest, offer.pages)
        now = self.clock.now()
        await self.store.write(lambda ledger: ledger.save_context(offer.project, context, now))
        return context


def _require_bounds(size: int, entries: int) -> None:
    """Raise `Invalid` before any work is done for a context that is too large."""
    if size > CONTEXT_BYTES_MAX or entries > 2 * CONTEXT_FILES_MAX:
        detail = f"the context has {size} bytes in {entries} files and folders"
        hint = "leave out what the build does not need with a line each in .dockerignore"
        raise Invalid(problem("context-too-large", detail, hint=hint))


def _parsed(digest: bytes, page: bytes) -> NewPage:
    try:
        return NewPage(digest=digest, page=page, entries=parse_page(page))
    except ArchiveError as error:
        raise Invalid(problem("invalid-document", str(error))) from error


def _chunks(new: NewPage) -> set[bytes]:
    return {digest for entry in new.entries for digest, _ in entry.chunks()}


def _some(pages: Sequence[NewPage]) -> list[NewPage]:
    """Return as many pages as one call may make parts of; the first, however large it is."""
    some: list[NewPage] = []
    left = SEAL_BYTES
    for new in pages:
        left -= sum(entry.size for entry in new.entries)
        if left < 0 and some:
            break
        some.append(new)
    return some


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
