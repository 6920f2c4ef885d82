"""Base images of other registries, by the owner's logins, kept here by their digest.

A tag is asked for anew each time, and what it names is kept; when its registry is silent, what it
last named is told for a week, and that it is so. Content is kept once its digest was checked:
while it comes in, whoever waits for it reads along, up to a last piece that is held back until
then. So nobody ever gets the whole of something wrong.

Whatever is kept belongs to the login under which it was had. Another project, with another login
or none, has to be let in by the registry itself first, and then gets the same bytes.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import IntegrityError
from pierhead.router.domain.errors import (
    InvalidRequest,
    NotAllowed,
    UpstreamBusy,
    UpstreamLies,
    UpstreamSilent,
)
from pierhead.router.domain.manifest import read_manifest
from pierhead.router.domain.rights import logins_of
from pierhead.router.domain.token import Principal
from pierhead.router.domain.upstream import (
    Bound,
    Image,
    blob_bound,
    image_at,
    is_digest,
    when_silent,
)
from pierhead.router.ports.mirror import Mirrored
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.ports.upstreams import Upstream, Upstreams
from pierhead.router.services.logins import Logins
from pierhead.server.blobs import BlobStore
from pierhead.server.log import get_logger
from pierhead.server.threads import in_thread

BLOB_SECONDS_MAX: Final = 3600.0
FETCHES_MAX: Final = 32
LIES_MAX: Final = 256
# A tag or a blob that is used more often than this is not noted each time.
NOTED_EVERY: Final = timedelta(hours=1)
_HELD_BACK: Final = 1
_LOOK_SECONDS: Final = 0.02
_PIECE_BYTES: Final = 1024 * 1024
log = get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A manifest to be given. `stale_since`: its registry was silent, and this is what it was."""

    manifest: Mirrored
    stale_since: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Mirror:
    """What whoever builds may have of other registries."""

    store: Store
    blobs: BlobStore
    logins: Logins
    upstreams: Upstreams
    clock: Clock
    _flights: dict[Hashable, "asyncio.Task[Any]"] = field(default_factory=dict)
    _coming: dict[Hashable, "Coming"] = field(default_factory=dict)
    _lies: dict[Hashable, UpstreamLies] = field(default_factory=dict)

    async def manifest(self, principal: Principal, host: str, name: str, reference: str) -> Found:
        """Return a manifest.

        Raises:
            NotAllowed: the principal builds nothing.
            UpstreamMissing, UpstreamRefused, UpstreamSilent, UpstreamBusy: the registry says so.
            UpstreamLies: what came has not the digest that was said.
        """
        image = image_at(host, name, reference)
        upstream = await self._upstream(principal, host)
        key = ("manifest", upstream.scope, image)
        return await self._together(key, lambda: self._manifest(upstream, image))

    async def blob(
        self, principal: Principal, host: str, name: str, digest: str, *, after_cut: bool = False
    ) -> "Path | Coming":
        """Return where a blob is, or one that is coming in.

        `after_cut`: the reader goes on where he was cut off. He is told when that was for a lie,
        which nobody could tell him then, and which another try would only repeat.
        """
        image = image_at(host, name, digest)
        upstream = await self._upstream(principal, host)
        if await self._is_kept(upstream, image):
            return self.blobs.path(digest)
        key = ("blob", upstream.scope, image)
        lie = self._lies.pop(key, None)
        if lie is not None and after_cut:
            raise lie
        if not self._is_coming(key):
            if await self._is_known(image):
                # Another login brought it from the same place, which has to let this one in.
                await self._together(key, lambda: self._let_in(upstream, image))
                return self.blobs.path(digest)
            if not self._is_coming(key):
                self._begin(key, upstream, image)
        coming = self._coming[key]
        await coming.begun()
        return coming

    async def blob_size(
        self, principal: Principal, host: str, name: str, digest: str
    ) -> int | None:
        """Return the size of a blob, without fetching it; none: its registry does not say."""
        image = image_at(host, name, digest)
        upstream = await self._upstream(principal, host)
        if await self._is_kept(upstream, image):
            return await self.blobs.size(digest)
        return await self.upstreams.blob_size(upstream, name, digest)

    async def close(self) -> None:
        """End what is coming in; what came of it is thrown away."""
        tasks = [*self._flights.values(), *(coming.task for coming in self._coming.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _upstream(self, principal: Principal, host: str) -> Upstream:
        project = logins_of(principal)
        if project is None:
            raise NotAllowed("only builds get the images of other registries here")
        return await self.logins.upstream(host, project)

    # Manifests.

    async def _manifest(self, upstream: Upstream, image: Image) -> Found:
        kept = await self.store.read(lambda ledger: ledger.mirrored(upstream.scope, image))
        if kept is not None and is_digest(image.reference):
            return Found(manifest=kept)
        try:
            return Found(manifest=await self._asked(upstream, image, kept))
        except (UpstreamSilent, UpstreamBusy) as error:
            since = kept.checked_at if kept is not None else None
            if kept is None or when_silent(since, self.clock.now()) == "gone":
                raise
            log.warning("mirror.stale", image=str(image), since=str(since), error=str(error))
            return Found(manifest=kept, stale_since=since)

    async def _asked(self, upstream: Upstream, image: Image, kept: Mirrored | None) -> Mirrored:
        """Ask the registry what an image is now; of one that is unchanged, only that."""
        now = self.clock.now()
        if kept is not None and await self.upstreams.digest(upstream, image) == kept.digest:
            if now - kept.checked_at > NOTED_EVERY:
                await self._keep(upstream.scope, image, replace(kept, checked_at=now))
            return kept
        kind, body, said = await self.upstreams.manifest(upstream, image)
        digest = digest_of(body)
        wanted = image.reference if is_digest(image.reference) else said
        if wanted not in (None, digest):
            raise UpstreamLies(image.host, f"{image.host} sent other bytes than {image} are")
        try:
            reading = await asyncio.to_thread(read_manifest, body, kind)
        except InvalidRequest as error:
            raise UpstreamSilent(f"{image} is no image that can be used: {error}") from error
        found = Mirrored(digest=digest, media_type=reading.kind, body=body, checked_at=now)
        await self._keep(upstream.scope, image, found)
        return found

    async def _keep(self, scope: str, image: Image, found: Mirrored) -> None:
        by_digest = Image(host=image.host, name=image.name, reference=found.digest)
        reading = await asyncio.to_thread(read_manifest, found.body, found.media_type)

        def operation(ledger: Ledger) -> None:
            for one in {image, by_digest}:
                ledger.keep_mirrored(scope, one, found)
            for part in reading.blobs:
                at = replace(by_digest, reference=part.digest)
                ledger.keep_mirrored_size(scope, at, part.size_bytes, found.checked_at)

        await self.store.write(operation)

    # Blobs.

    async def _is_kept(self, upstream: Upstream, image: Image) -> bool:
        """Say whether a blob may be had under a login and is here; note that it is used."""
        where = (upstream.scope, image.host, image.name, image.reference)
        used = await self.store.read(lambda ledger: ledger.mirrored_blob(*where))
        if used is None or await self.blobs.size(image.reference) is None:
            return False
        if self.clock.now() - used > NOTED_EVERY:
            await self._note(upstream, image)
        return True

    async def _is_known(self, image: Image) -> bool:
        """Say whether the very same place once gave this blob, and it is here.

        That another place gave it, or that a project pushed it, must not count: whoever has a
        registry of his own could let it say that it has what belongs to others.
        """
        place = (image.host, image.name, image.reference)
        given = await self.store.read(lambda ledger: ledger.was_mirrored(*place))
        return given and await self.blobs.size(image.reference) is not None

    async def _note(self, upstream: Upstream, image: Image) -> None:
        where = (upstream.scope, image.host, image.name, image.reference)
        now = self.clock.now()
        await self.store.write(lambda ledger: ledger.keep_mirrored_blob(*where, now))

    async def _let_in(self, upstream: Upstream, image: Image) -> None:
        await self.upstreams.blob_size(upstream, image.name, image.reference)
        await self._note(upstream, image)

    def _begin(self, key: Hashable, upstream: Upstream, image: Image) -> None:
        if len(self._coming) >= FETCHES_MAX:
            raise UpstreamBusy("too many layers come in at this time", hint="build again")
        coming = Coming(self.blobs, image.host, image.reference)
        coming.task = asyncio.create_task(self._fetch(coming, key, upstream, image))
        self._coming[key] = coming
        coming.task.add_done_callback(lambda _: self._gone(key, coming))

    def _is_coming(self, key: Hashable) -> bool:
        """Say whether a blob is on its way; one that broke off and is being cleared away is not."""
        return key in self._coming and not self._coming[key].is_broken

    def _gone(self, key: Hashable, coming: "Coming") -> None:
        if self._coming.get(key) is coming:
            del self._coming[key]

    async def _fetch(
        self, coming: "Coming", key: Hashable, upstream: Upstream, image: Image
    ) -> None:
        """Bring a blob in. Whoever asked for it hears how it ended; nobody need be left."""
        try:
            bound = await self._bound(upstream, image)
            async with (
                asyncio.timeout(BLOB_SECONDS_MAX),
                self.upstreams.blob(upstream, image.name, image.reference, bound) as blob,
            ):
                await coming.take(blob.chunks, blob.size_bytes, bound)
            await self._note(upstream, image)
            coming.end(None)
        except (IntegrityError, UpstreamLies) as error:
            lie = UpstreamLies(image.host, f"{image.host} sent other bytes than {image} are")
            if isinstance(error, UpstreamLies):
                lie = error
            self._remember(key, lie)
            _broken(coming, image, lie)
        except TimeoutError:
            slow = UpstreamSilent(f"{image.host} takes too long with {image}")
            _broken(coming, image, slow)
        except Exception as error:
            _broken(coming, image, error)
        finally:
            coming.end(UpstreamSilent("the control plane is stopping"))
            await coming.clear()

    async def _bound(self, upstream: Upstream, image: Image) -> Bound:
        """Return how much of a blob is taken: its registry's manifest says it, before it sends."""
        said = await self.store.read(lambda ledger: ledger.mirrored_size(upstream.scope, image))
        return blob_bound(image.host, str(image), said)

    def _remember(self, key: Hashable, lie: UpstreamLies) -> None:
        if len(self._lies) >= LIES_MAX:
            self._lies.clear()  # whoever is not told tries again, and is told then
        self._lies[key] = lie

    async def _together(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Let all who want the same at the same time have one answer."""
        task = self._flights.get(key)
        if task is None:
            task = asyncio.ensure_future(work())
            self._flights[key] = task
            task.add_done_callback(lambda done: self._landed(key, done))
        found: T = await asyncio.shield(task)
        return found

    def _landed(self, key: Hashable, task: "asyncio.Task[Any]") -> None:
        self._flights.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; perhaps nobody did


def _broken(coming: "Coming", image: Image, error: Exception) -> None:
    """Tell all who wait why nothing comes of it; once in the log, however many those are."""
    log.warning("mirror.broken", image=str(image), error=str(error))
    coming.end(error)


class Coming:
    """A blob on its way in, for all who read along."""

    task: "asyncio.Task[None]"

    def __init__(self, blobs: BlobStore, host: str, digest: str) -> None:
        self.host = host
        self.digest = digest
        self.size_bytes: int | None = None
        self._blobs = blobs
        self._upload: str | None = None
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()

    @property
    def is_broken(self) -> bool:
        """Whether it came to nothing."""
        return self._ended.done() and self._ended.exception() is not None

    async def take(
        self, chunks: AsyncIterator[bytes], size_bytes: int | None, bound: Bound
    ) -> None:
        """Write what comes, check it, and give it its name."""
        self.size_bytes = size_bytes
        self._upload = await self._blobs.begin()
        if size_bytes is not None:
            self._begun.set_result(None)
        await self._blobs.append(self._upload, 0, chunks, bound.size_bytes)
        self.size_bytes = await self._blobs.commit(self._upload, self.digest)

    def end(self, error: Exception | None) -> None:
        """Tell all who wait; the first word counts."""
        for waited in (self._begun, self._ended):
            if not waited.done():
                if error is None:
                    waited.set_result(None)
                else:
                    waited.set_exception(error)
                    waited.exception()  # perhaps nobody waits

    async def clear(self) -> None:
        """Throw away what did not become a blob."""
        if self._upload is not None:
            await self._blobs.discard(self._upload)

    async def begun(self) -> None:
        """Wait until its size is known, and that the registry gives it."""
        await asyncio.shield(self._begun)

    async def read(self, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes from `start` to before `end` as they come; the last one when all is well.

        Raises:
            Refused, PierheadError: it came to nothing.
        """
        assert self._upload is not None
        with self._blobs.reading(self._upload, self.digest) as file:
            while start < end:
                arrived = await self._arrived(start, end)
                while start < arrived:
                    size = min(arrived - start, _PIECE_BYTES)
                    piece = await in_thread(os.pread, file.fileno(), size, start)
                    if not piece:  # it was cut behind our back: never wait for what does not come
                        raise UpstreamSilent(f"what came of {self.digest} is gone from the disk")
                    start += len(piece)
                    yield piece

    async def _arrived(self, start: int, end: int) -> int:
        """Wait for more than `start` bytes that may be given, and return how many those are."""
        assert self._upload is not None
        assert self.size_bytes is not None
        while not self._ended.done():
            there = min(self._blobs.written(self._upload), self.size_bytes - _HELD_BACK, end)
            if there > start:
                return there
            await asyncio.wait([self._ended], timeout=_LOOK_SECONDS)
        await self._ended
        return end
