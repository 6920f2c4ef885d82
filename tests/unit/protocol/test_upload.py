"""Only what is missing is sent, whatever is cut on its way."""

import os
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest

from pierhead.protocol.client import upload as module
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.pack import FolderContent
from pierhead.protocol.client.upload import Sent, upload
from pierhead.protocol.errors import Invalid, PierheadError, Refused, Unavailable
from pierhead.protocol.objects import BODY_BYTES_MAX, frames
from pierhead.protocol.plan import ContextOffer, ContextRef, ContextState, ObjectsKept
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import parse_page
from tests.contexts import described

FILES = {f"f{number:03}": os.urandom(1000) for number in range(100)}
LOST = Unavailable(problem("dependency-unavailable", "the connection was cut"))


async def whole(body: bytes) -> AsyncIterator[bytes]:
    yield body


class Store:
    """A control plane that keeps what arrives, and fails when a script says so."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.bodies: list[int] = []
        self.before: dict[int, PierheadError] = {}  # by the number of the body, before it arrives
        self.after: dict[int, PierheadError] = {}  # when it has arrived
        self.at_once = 30  # missing objects that one answer names

    async def offer_context(self, offer: ContextOffer) -> ContextState:
        pages = [offer.pages[at : at + 32] for at in range(0, len(offer.pages), 32)]
        missing = [page for page in pages if page not in self.objects]
        if not missing:
            wanted = [
                digest
                for page in pages
                for entry in parse_page(self.objects[page])
                for digest, _ in entry.chunks()
            ]
            missing = [digest for digest in dict.fromkeys(wanted) if digest not in self.objects]
        if missing:
            return ContextState(missing=b"".join(missing[: self.at_once]))
        there = ContextRef(digest=offer.digest, size_bytes=1, unpacked_bytes=1, files=1)
        return ContextState(context=there)

    async def send_objects(self, _project: str, body: bytes) -> ObjectsKept:
        self.bodies.append(len(body))
        if error := self.before.get(len(self.bodies)):
            raise error
        kept = 0
        async for arrived in frames(whole(body)):
            for _at, data in arrived.objects():
                self.objects[sha256(data).digest()] = data
                kept += 1
        if error := self.after.get(len(self.bodies)):
            raise error
        return ObjectsKept(objects=kept)


async def sent(
    store: Store,
    files: dict[str, bytes] = FILES,
    progress: Callable[[int, int], None] = lambda _done, _missing: None,
) -> Sent:
    return await upload(cast("RouterClient", store), "web", described(files), progress)


@pytest.fixture(autouse=True)
def small_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_BYTES", 5_000)
    monkeypatch.setattr(module, "FRAME_BYTES", 2_500)
    monkeypatch.setattr("pierhead.protocol.client.retry.FIRST_WINDOW_SECONDS", 0)


def all_there(store: Store, files: dict[str, bytes] = FILES) -> bool:
    return {*files.values()} <= {*store.objects.values()}


async def test_everything_arrives_in_small_bodies_and_progress_follows() -> None:
    store, seen = Store(), list[tuple[int, int]]()
    done = await sent(store, progress=lambda done, missing: seen.append((done, missing)))
    assert all_there(store)
    assert done.files == len(FILES)
    assert max(store.bodies) <= 5_000
    assert sum(store.bodies) == done.sent_bytes
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


async def test_what_is_there_is_not_sent() -> None:
    store = Store()
    await sent(store)
    store.bodies.clear()
    assert (await sent(store)).sent_bytes == 0
    assert store.bodies == []


async def test_one_changed_file_is_sent_with_its_page_and_nothing_else() -> None:
    store = Store()
    first = await sent(store)
    before = len(store.objects)
    changed = await sent(store, {**FILES, "f050": b"changed"})
    assert changed.files == 1
    assert len(store.objects) == before + 2
    assert changed.sent_bytes < first.sent_bytes / 5


async def test_what_has_content_of_another_file_is_not_sent_again() -> None:
    store = Store()
    await sent(store)
    renamed = await sent(store, {f"moved-{name}": FILES[name] for name in FILES})
    assert renamed.files == 0


@pytest.mark.parametrize("number", [1, 2, 7])
async def test_a_body_that_is_lost_is_sent_again(number: int) -> None:
    store = Store()
    store.before = {number: LOST}
    await sent(store)
    assert all_there(store)


@pytest.mark.parametrize("number", [1, 7])
async def test_a_body_whose_answer_is_lost_does_no_harm(number: int) -> None:
    store = Store()
    store.after = {number: LOST}
    await sent(store)
    assert all_there(store)


async def test_an_upload_that_was_ended_goes_on_with_what_is_missing() -> None:
    store = Store()
    store.before = {10: Refused(problem("not-allowed", "the client was ended"))}
    with pytest.raises(Refused):
        await sent(store)
    store.before.clear()
    there = sum(store.bodies[:-1])
    store.bodies.clear()
    await sent(store)
    assert all_there(store)
    assert sum(store.bodies) < sum(map(len, FILES.values())) * 1.1 - there + 5_000


async def test_a_large_file_goes_in_bodies_that_any_proxy_takes() -> None:
    store = Store()
    large = {"large": os.urandom(4 * 2**20)}
    await sent(store, large)
    assert all_there(store, large)
    assert max(store.bodies) < BODY_BYTES_MAX


async def test_a_refusal_is_told() -> None:
    class Closed(Store):
        async def offer_context(self, offer: ContextOffer) -> ContextState:
            raise Refused(problem("not-allowed", f"not for {offer.project}"))

    with pytest.raises(Refused, match="not for web"):
        await sent(Closed())


async def test_a_file_that_was_changed_meanwhile_ends_the_upload(tmp_path: Path) -> None:
    packed = described(FILES)
    packed.content = FolderContent(tmp_path, {})
    (tmp_path / "f000").write_bytes(b"another")
    with pytest.raises(Invalid, match="f000 was changed while it was packed"):
        await upload(cast("RouterClient", Store()), "web", packed)


async def test_a_control_plane_that_keeps_nothing_is_not_sent_the_same_for_ever() -> None:
    class Leaky(Store):
        async def send_objects(self, _project: str, body: bytes) -> ObjectsKept:
            self.bodies.append(len(body))
            return ObjectsKept(objects=1)

    store = Leaky()
    with pytest.raises(Unavailable, match="does not keep"):
        await sent(store)
    assert len(store.bodies) < 10


async def test_a_control_plane_that_asks_for_what_it_was_not_offered_gets_nothing() -> None:
    class Curious(Store):
        async def offer_context(self, offer: ContextOffer) -> ContextState:
            return ContextState(missing=sha256(b"your secrets").digest())

    with pytest.raises(Unavailable, match="never offered"):
        await sent(Curious())


async def test_a_control_plane_whose_disk_is_full_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full(Store):
        async def send_objects(self, _project: str, body: bytes) -> ObjectsKept:
            raise Unavailable(problem("storage-full", f"no room for {len(body)} bytes"))

    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
    with pytest.raises(Unavailable, match="no room"):
        await sent(Full())
