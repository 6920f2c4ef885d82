"""What every store of contexts keeps, asked of the one on a disk and of the simulator's."""

import itertools
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard

from pierhead.protocol.client.pack import Packed
from pierhead.protocol.errors import Invalid, Unavailable
from pierhead.protocol.objects import frame
from pierhead.protocol.tree import parse_page
from pierhead.router.adapters.contents import FileContents
from pierhead.router.ports.contexts import ContextStore, NewPage
from tests.contexts import described
from tests.simulation.contents import MemoryContents

PACKED = described({f"src/{number:03}": b"content %d" % number for number in range(300)})
NOTHING = sha256(b"nothing").digest()


@pytest.fixture(params=["memory", "disk"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ContextStore]:
    if request.param == "memory":
        yield MemoryContents()
        return
    numbers = itertools.count()
    opened = await FileContents.open(tmp_path, new_id=lambda: f"c_{next(numbers)}")
    try:
        yield opened
    finally:
        await opened.close()


async def body(*objects: bytes, end: bytes = b"") -> AsyncIterator[bytes]:
    yield frame(objects) + end


def new_pages(packed: Packed) -> list[NewPage]:
    return [
        NewPage(digest=sha256(page).digest(), page=page, entries=parse_page(page))
        for page in packed.pages
    ]


def digests(packed: Packed) -> list[bytes]:
    return [new.digest for new in new_pages(packed)]


async def bring(store: ContextStore, project: str, packed: Packed) -> None:
    contents = [packed.read(digest) for digest in packed.sources]
    assert await store.keep(project, body(*packed.pages, *contents)) == len(packed.pages) + len(
        packed.sources
    )
    await store.seal(project, new_pages(packed))
    await store.save(project, packed.digest, b"".join(digests(packed)))


async def tar_of(store: ContextStore, project: str, packed: Packed) -> bytes | None:
    archive = await store.archive(project, packed.digest)
    if archive is None:
        return None
    whole = b"".join(
        part
        if isinstance(part, bytes)
        else part.path.read_bytes()[part.offset : part.offset + part.length]
        for part in archive.parts
    )
    return zstandard.ZstdDecompressor().stream_reader(whole, read_across_frames=True).read()


async def test_what_was_kept_is_lacking_no_more_and_can_be_read(store: ContextStore) -> None:
    one, two = sha256(b"one").digest(), sha256(b"two").digest()
    assert await store.lacking("web", [two, one, two]) == [two, one]
    assert await store.keep("web", body(b"one")) == 1
    assert await store.lacking("web", [two, one, two]) == [two]
    assert await store.read("web", [one, two]) == {one: b"one"}


async def test_what_came_before_damage_is_kept(store: ContextStore) -> None:
    with pytest.raises(Invalid):
        await store.keep("web", body(b"one", end=frame([b"two"])[:4] + b"damage" * 100))
    assert await store.lacking("web", [sha256(b"one").digest()]) == []


async def test_what_one_project_has_is_not_there_for_another(store: ContextStore) -> None:
    await bring(store, "web", PACKED)
    assert await store.lacking("api", digests(PACKED)) == digests(PACKED)
    assert await store.read("api", list(PACKED.sources)) == {}
    assert await store.sealed("api", digests(PACKED)) == {}
    assert await tar_of(store, "api", PACKED) is None


async def test_parts_are_made_only_of_what_is_there(store: ContextStore) -> None:
    await store.keep("web", body(*PACKED.pages))
    with pytest.raises(Unavailable):
        await store.seal("web", new_pages(PACKED))
    assert await store.sealed("web", digests(PACKED)) == {}


async def test_a_sealed_page_says_what_is_in_it(store: ContextStore) -> None:
    await bring(store, "web", PACKED)
    found = await store.sealed("web", [*digests(PACKED), NOTHING])
    assert set(found) == set(digests(PACKED))
    assert sum(page.files for page in found.values()) == PACKED.files
    assert sum(page.size_bytes for page in found.values()) == PACKED.size_bytes
    assert {page.page for page in found.values()} == set(PACKED.pages)


async def test_an_archive_is_the_tar_of_its_files_and_the_same_each_time(
    store: ContextStore,
) -> None:
    await bring(store, "web", PACKED)
    tar = await tar_of(store, "web", PACKED)
    assert tar is not None
    for number in (0, 299):
        assert b"content %d" % number in tar
    tagged = [await store.archive("web", PACKED.digest) for _ in range(2)]
    assert len({archive.tag for archive in tagged if archive}) == 1


async def test_a_context_that_is_forgotten_is_not_there_and_others_are(store: ContextStore) -> None:
    other = described({"a": b"1", "b": b"2"})
    await bring(store, "web", PACKED)
    await bring(store, "web", other)
    await store.forget("web", PACKED.digest)
    await store.forget("web", PACKED.digest)
    await store.sweep()
    assert await tar_of(store, "web", PACKED) is None
    assert await tar_of(store, "web", other) is not None


async def test_with_a_project_goes_all_that_it_had(store: ContextStore) -> None:
    await bring(store, "web", PACKED)
    await bring(store, "api", PACKED)
    await store.forget_project("web")
    assert await tar_of(store, "web", PACKED) is None
    assert await store.sealed("web", digests(PACKED)) == {}
    assert await store.lacking("web", list(PACKED.sources)) == list(PACKED.sources)
    assert await tar_of(store, "api", PACKED) is not None
