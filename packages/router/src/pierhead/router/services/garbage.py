"""Gives back what nothing needs any more: old builds and logs, links, blobs, uploads.

Nothing is taken that somebody may still rely on. A blob goes in two steps: first its link, when no
manifest of the repository needs it and nobody was told of it within the grace; later its file, when
no link to it was left and it was not committed within the grace. A link can be made only from
another link, or by a commit, which makes the file young again and cannot happen while files are
taken away. So no push and no running build loses anything, and whoever ends this at any point
leaves nothing that the next run does not finish.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, TypeAlias

from pierhead.protocol.result import Envelope
from pierhead.router.domain.naming import attempt_name, is_of_attempt, mark_of, upload_mark
from pierhead.router.domain.parent import Parent
from pierhead.router.domain.retention import Retention, is_over
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.images import Link
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.server.blobs import BlobStore

# A transaction takes so much: others wait for the writer meanwhile.
AT_ONCE: Final = 50
ASKED_AT_ONCE: Final = 500  # of what is only read
Operation: TypeAlias = Callable[[Ledger], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one run gave back."""

    builds: int
    logs: int
    links: int
    blobs: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """One run after the other, never two at once."""

    store: Store
    blobs: BlobStore
    logs: Logs
    clock: Clock
    retention: Retention

    async def once(self) -> Collected:
        """Look at everything once."""
        now = self.clock.now()
        builds = await self._builds(now)
        logs = await self._logs(now)
        links = await self._links(now) + await self._mirrored(now)
        await asyncio.to_thread(self.blobs.sweep, now.timestamp())
        blobs = await self._blobs(now)
        freed = await asyncio.to_thread(self.blobs.empty_trash)
        return Collected(builds=builds, logs=logs, links=links, blobs=blobs, freed_bytes=freed)

    async def uploads(self) -> int:
        """Give up the uploads of attempts that are over, with which nobody can go on.

        Cheap when there are none, so that it may run each second.
        """
        theirs = [
            one for one in await asyncio.to_thread(self.blobs.open_uploads) if is_of_attempt(one)
        ]
        if not theirs:
            return 0
        # Later than what was found: whoever began one of these was live before this is read.
        live = await self.store.read(lambda ledger: ledger.live_attempts())
        marks = {upload_mark(one.project, attempt_name(one.build_id, one.fence)) for one in live}
        over = [one for one in theirs if mark_of(one) not in marks]
        for one in over:
            await self.blobs.discard(one)
        return len(over)

    async def _builds(self, now: datetime) -> int:
        """Forget builds that ended long ago, with their images that no tag names."""
        before = now - self.retention.builds

        def operation(ledger: Ledger) -> int:
            old = ledger.ended_before(before, AT_ONCE)
            for stored in old:
                _forget(ledger, stored)
            return len(old)

        return await self._until_few(operation)

    async def _logs(self, now: datetime) -> int:
        """Remove logs of builds that ended a while ago, and of builds that are gone."""
        kept, before = self.retention.logs, (now - self.retention.logs).timestamp()
        removed = 0
        for build_id in await asyncio.to_thread(self.logs.untouched, before):
            stored = await self.store.read(lambda ledger, one=build_id: ledger.build(one))  # type: ignore[misc]
            if stored is None or is_over(stored.build, kept, now=now):
                await self.logs.drop(build_id)
                removed += 1
        return removed

    async def _links(self, now: datetime) -> int:
        """Drop links that nothing needs; looking for them holds up nobody."""
        before, last, dropped = now - self.retention.grace, Link(), 0
        while idle := await self._idle_links(before, last):
            dropped += await self._forget_links(before, idle)
            last = idle[-1]
        return dropped

    async def _idle_links(self, before: datetime, last: Link) -> Sequence[Link]:
        return await self.store.read(lambda ledger: ledger.idle_links(before, last, AT_ONCE))

    async def _forget_links(self, before: datetime, idle: Sequence[Link]) -> int:
        return await self.store.write(lambda ledger: ledger.forget_links(before, idle))

    async def _mirrored(self, now: datetime) -> int:
        """Forget base images that no build used for a while; the next one fetches them again."""
        before = now - self.retention.mirrored
        return await self._until_few(lambda ledger: ledger.forget_mirrored(before, AT_ONCE))

    async def _until_few(self, operation: Operation) -> int:
        """Repeat an operation until it finds less than it takes at once; return how many."""
        total = 0
        while (some := await self.store.write(operation)) == AT_ONCE:
            total += some
        return total + some

    async def _blobs(self, now: datetime) -> int:
        before = (now - self.retention.grace).timestamp()
        taken = 0
        for shard in await asyncio.to_thread(self.blobs.shards):
            old = iter(await asyncio.to_thread(self.blobs.settled, shard, before))
            while some := list(islice(old, ASKED_AT_ONCE)):
                taken += await self._take(some, before)
        return taken

    async def _take(self, digests: Sequence[str], before: float) -> int:
        # Not a link that a transaction under way might still bring back: what is read is committed.
        unlinked = await self.store.read(lambda ledger: ledger.unlinked(digests))
        taken = 0
        for at in range(0, len(unlinked), AT_ONCE):
            some = unlinked[at : at + AT_ONCE]
            taken += await asyncio.to_thread(self.blobs.take_away, some, before)
        return taken


def _forget(ledger: Ledger, stored: StoredBuild) -> None:
    """Forget a build, with those of its platforms; their manifests go after the index has gone."""
    children = stored.build.children if isinstance(stored.build, Parent) else ()
    for build_id in (stored.id, *(child.id for child in children)):
        ledger.delete_build(build_id)
    envelope = stored.envelope or Envelope(outcome="failed")
    images = [image.manifest_digest for image in envelope.platforms]
    for digest in dict.fromkeys(filter(None, [envelope.manifest_digest, *images])):
        if not ledger.is_named(stored.submit.project, digest):
            ledger.delete_manifest(stored.submit.project, digest)
