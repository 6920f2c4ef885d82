"""What is given back, what stays, and that no interleaving with pushes loses anything."""

import asyncio
import contextlib
import itertools
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.plan import ContextRef, Plan, Submit
from pierhead.protocol.result import Envelope
from pierhead.router.domain.build import Build, Grant, LeasePolicy, State, decide
from pierhead.router.domain.errors import InvalidRequest, Refused
from pierhead.router.domain.retention import GRACE_MIN, Retention
from pierhead.router.domain.token import Attempt, ProjectHolder
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger
from pierhead.router.services import garbage
from pierhead.router.services.garbage import Garbage
from pierhead.router.services.registry import Registry
from pierhead.server.blobs import BlobStore
from tests.integration.registry.image import MANIFEST, image
from tests.simulation.store import MemoryLogs, MemoryStore

T = TypeVar("T")
SHOP = ProjectHolder("acme/shop")
START = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 1_000_000


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at


class Slow(MemoryStore):
    """A store whose callers wait for a while that the seed decides, before and after."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda *_: None, lambda: None)
        self.chance = random.Random(seed)

    async def pause(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    async def write(self, operation: Callable[[Ledger], T]) -> T:
        await self.pause()
        result = await super().write(operation)
        await self.pause()
        return result

    async def read(self, operation: Callable[[Ledger], T]) -> T:
        await self.pause()
        result = await super().read(operation)
        await self.pause()
        return result


class World:
    """A registry and its sweep over one store, one folder and one clock."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.clock, self.store, self.logs = Hands(), Slow(seed), MemoryLogs()
        numbers = itertools.count()
        self.blobs = BlobStore(
            folder,
            new_id=lambda: f"u_{next(numbers):012}",
            now=lambda: self.clock.at.timestamp(),
        )
        self.registry = Registry(store=self.store, blobs=self.blobs, clock=self.clock)
        self.garbage = Garbage(
            store=self.store,
            blobs=self.blobs,
            logs=self.logs,
            clock=self.clock,
            retention=Retention(),
        )

    async def push_blob(self, data: bytes) -> None:
        upload = await self.registry.begin(SHOP, SHOP.project)
        await self.registry.append(SHOP, SHOP.project, upload, parts(data))
        await self.registry.commit(SHOP, SHOP.project, upload, digest_of(data))

    async def push(self, greeting: str, tag: str) -> str:
        """Push as every client does: ask what is here, send what is not, then the manifest."""
        mine = image(greeting)
        for data in (mine.layer, mine.config):
            try:
                await self.registry.blob_size(SHOP, SHOP.project, digest_of(data))
            except Refused:
                await self.push_blob(data)
            await self.store.pause()
        await self.registry.push_manifest(SHOP, SHOP.project, tag, MANIFEST, mine.manifest)
        return mine.digest

    async def require_whole(self) -> None:
        """Whatever is visible is there, with all its parts."""
        ledger = self.store.ledger
        for _, digest, _ in ledger.blobs_:
            assert self.blobs.path(digest).exists(), digest
        for (repository, _, pending), manifest in ledger.manifests_.items():
            for part in manifest.parts:
                assert ledger.has_blob(repository, part, pending), part


async def parts(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def ended(number: int, at: datetime, **changes: object) -> StoredBuild:
    context = ContextRef(digest=digest_of(b""), size_bytes=1, unpacked_bytes=1, files=1)
    build = replace(Build(id=f"b_{number}"), state=State.SUCCEEDED, fence=1, finished_at=at)
    stored = StoredBuild(
        build=build,
        sequence=0,
        submit=Submit(project=SHOP.project, plan=Plan(), context=context, key=f"k{number}"),
        trusted=False,
        created_at=at,
        queued_since=at,
    )
    return replace(stored, **changes)  # type: ignore[arg-type]


async def test_what_a_deleted_image_had_alone_goes_after_the_grace(world: World) -> None:
    kept, gone = image("kept"), image("gone")
    await world.push("kept", "a")
    await world.push("gone", "b")
    await world.registry.delete_manifest(SHOP, SHOP.project, gone.digest)

    world.clock.at += timedelta(hours=23)
    assert (await world.garbage.once()).blobs == 0
    world.clock.at += timedelta(hours=2)
    collected = await world.garbage.once()

    assert (collected.links, collected.blobs) == (2, 2)
    assert collected.freed_bytes == len(gone.layer) + len(gone.config)
    assert await world.blobs.size(digest_of(gone.layer)) is None
    assert await world.blobs.size(digest_of(kept.layer)) == len(kept.layer)
    await world.require_whole()


async def test_a_pusher_who_was_told_that_a_blob_is_here_may_rely_on_it(world: World) -> None:
    await world.push_blob(b"base")
    world.clock.at += timedelta(hours=23)
    await world.registry.blob_size(SHOP, SHOP.project, digest_of(b"base"))
    world.clock.at += timedelta(hours=23)
    assert (await world.garbage.once()).links == 0
    world.clock.at += timedelta(hours=2)
    assert (await world.garbage.once()).links == 1


async def test_what_an_attempt_pushed_stays_while_it_is_pending(world: World) -> None:
    await world.push_blob(b"layer")
    ledger = world.store.ledger
    ledger.blobs_ = {(SHOP.project, digest_of(b"layer"), "b_1.1"): START}
    world.clock.at += timedelta(days=9)
    await world.garbage.once()
    assert await world.blobs.size(digest_of(b"layer")) == 5
    ledger.forget(SHOP.project, "b_1.1")
    assert (await world.garbage.once()).blobs == 1


async def test_builds_go_with_their_images_and_logs_but_not_what_is_tagged(world: World) -> None:
    untagged, tagged = image("untagged"), image("tagged")
    for number, one in enumerate((untagged, tagged)):
        digest = await world.push(one.config.hex()[:4], f"t{number}")
        envelope = Envelope(outcome="succeeded", manifest_digest=digest)
        reference = f"host/{SHOP.project}@{digest}"
        build = ended(number, START, envelope=envelope, reference=reference)
        await world.store.write(lambda ledger, b=build: ledger.add_build(b))  # type: ignore[misc]
        await world.logs.append(build.id, 1, 0, b"log")
    ledger = world.store.ledger
    del ledger.tags_[SHOP.project, "t0"]

    world.clock.at = START + timedelta(days=31)
    assert (await world.garbage.once()).logs == 2
    assert len(ledger.builds_) == 2
    world.clock.at = START + timedelta(days=91)
    assert (await world.garbage.once()).builds == 2

    assert [tag for _, tag in ledger.tags_] == ["t1"]
    assert len(ledger.manifests_) == 1
    await world.require_whole()


async def test_an_image_that_a_younger_build_made_too_stays(world: World) -> None:
    digest = await world.push("same", "t")
    ledger = world.store.ledger
    ledger.tags_.clear()
    for number, days in enumerate((0, 60)):
        build = ended(
            number,
            START + timedelta(days=days),
            envelope=Envelope(outcome="succeeded", manifest_digest=digest),
            reference=f"host/{SHOP.project}@{digest}",
        )
        ledger.add_build(build)
    world.clock.at = START + timedelta(days=91)
    assert (await world.garbage.once()).builds == 1
    assert len(ledger.manifests_) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"grace": GRACE_MIN - timedelta(seconds=1)},
        {"builds": timedelta(hours=23)},
        {"logs": timedelta(0)},
    ],
)
def test_what_would_take_away_what_is_in_use_is_refused(settings: dict[str, timedelta]) -> None:
    with pytest.raises(InvalidRequest):
        Retention(**settings)


@pytest.mark.parametrize("seed", range(60))
async def test_no_interleaving_of_pushes_deletes_and_the_sweep_loses_anything(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "AT_ONCE", 2)
    with tempfile.TemporaryDirectory() as folder:
        world, chance = World(Path(folder), seed), random.Random(seed)
        pushed: list[str] = []

        async def pushing(number: int) -> None:
            for _ in range(3):
                # Few images: the same content is pushed, deleted, and pushed while it is swept.
                digest = await world.push(f"image {chance.randrange(3)}", f"t{number}")
                pushed.append(digest)
                if chance.random() < 0.6:
                    with contextlib.suppress(Refused):
                        victim = chance.choice(pushed)
                        await world.registry.delete_manifest(SHOP, SHOP.project, victim)

        async def sweeping() -> None:
            for _ in range(4):
                await world.garbage.once()

        for _ in range(4):
            # No push is longer than the grace: what it found stays while it goes on.
            await asyncio.gather(pushing(0), pushing(1), sweeping())
            await world.require_whole()
            world.clock.at += timedelta(hours=chance.choice((1, 25, 50)))
        world.clock.at += timedelta(days=3)
        await world.garbage.once()
        await world.require_whole()
        files = {path.name for path in Path(folder).glob("blobs/sha256/*/*")}
        needed = {digest.removeprefix("sha256:") for _, digest, _ in world.store.ledger.blobs_}
        assert files == needed, "nothing is left that nobody needs"


async def test_uploads_of_attempts_go_with_them_and_others_stay(world: World) -> None:
    def leased(number: int, fence: int) -> StoredBuild:
        build, grant = Build(id=f"b_{number}", fence=fence - 1), Grant("one", "s_1", "r1")
        build, _ = decide(build, grant, now=START, policy=LeasePolicy())
        return replace(ended(number, START), build=build)

    for stored in (leased(1, 1), leased(2, 3), ended(3, START)):
        await world.store.write(lambda ledger, one=stored: ledger.add_build(one))  # type: ignore[misc]
    of = [Attempt(f"b_{n}", f, SHOP.project) for n, f in ((1, 1), (2, 2), (2, 3), (3, 1))]
    by_project = await world.registry.begin(SHOP, SHOP.project)
    lives, lost, newer, over = [await world.registry.begin(one, SHOP.project) for one in of]

    assert await world.garbage.uploads() == 2

    assert sorted(world.blobs.open_uploads()) == sorted([by_project, lives, newer])
    for gone, attempt in ((lost, of[1]), (over, of[3])):
        with pytest.raises(PierheadError) as refused:
            await world.registry.append(attempt, SHOP.project, gone, parts(b"x"))
        assert refused.value.problem.slug == "not-found"
    assert await world.garbage.uploads() == 0
