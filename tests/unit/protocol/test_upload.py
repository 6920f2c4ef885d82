"""A context arrives whole, whatever is cut on its way, and no byte is sent without need."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from pierhead.protocol.client import upload as module
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.upload import upload
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import PierheadError, Refused, Unavailable
from pierhead.protocol.plan import ContextRef, UploadRequest, UploadStatus
from pierhead.protocol.problem import problem

DATA = bytes(range(100))
REF = ContextRef(digest=digest_of(DATA), size_bytes=len(DATA), unpacked_bytes=0, files=0)
LOST = Unavailable(problem("dependency-unavailable", "the connection was cut"))


class Store:
    """A control plane that keeps what arrives, and fails when a script says so."""

    def __init__(self, held: bytes = b"") -> None:
        self.held = held
        self.complete = False
        self.before: dict[int, PierheadError] = {}  # by the number of the part, before it arrives
        self.after: dict[int, PierheadError] = {}  # when it has arrived
        self.parts = 0

    def _status(self) -> UploadStatus:
        gone = self.complete
        return UploadStatus(id=None if gone else "u_1", offset=len(self.held), complete=gone)

    async def begin_upload(self, request: UploadRequest) -> UploadStatus:
        assert request.digest == REF.digest
        return self._status()

    async def upload_status(self, _: str) -> UploadStatus:
        if self.complete:
            raise Refused(problem("not-found", "there is no such upload"))
        return self._status()

    async def upload_part(self, _: str, offset: int, part: bytes) -> UploadStatus:
        self.parts += 1
        if error := self.before.get(self.parts):
            raise error
        if offset != len(self.held):
            detail = "the bytes do not go on"
            raise Refused(problem("offset-mismatch", detail, next_offset=len(self.held)))
        self.held += part
        self.complete = self.held == DATA
        if error := self.after.get(self.parts):
            raise error
        return self._status()


async def sent(store: Store, folder: Path, progress: Callable[[int], None] = lambda _: None) -> int:
    file = folder / "context"
    file.write_bytes(DATA)
    return await upload(cast("RouterClient", store), "web", REF, file, progress)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 30)
    monkeypatch.setattr("pierhead.protocol.client.retry.FIRST_WINDOW_SECONDS", 0)


async def test_parts_arrive_in_order_and_progress_follows_them(tmp_path: Path) -> None:
    store, seen = Store(), list[int]()
    assert await sent(store, tmp_path, seen.append) == len(DATA)
    assert store.held == DATA
    assert seen == [30, 60, 90, 100]


async def test_what_is_there_already_is_not_sent(tmp_path: Path) -> None:
    store = Store(DATA)
    store.complete = True
    assert await sent(store, tmp_path) == 0
    assert store.parts == 0


async def test_an_upload_that_began_before_goes_on(tmp_path: Path) -> None:
    store = Store(DATA[:60])
    assert await sent(store, tmp_path) == 40


@pytest.mark.parametrize("number", [1, 2, 4])
async def test_a_part_that_is_lost_is_sent_again(number: int, tmp_path: Path) -> None:
    store = Store()
    store.before = {number: LOST}
    await sent(store, tmp_path)
    assert store.held == DATA


@pytest.mark.parametrize("number", [1, 4])
async def test_a_part_whose_answer_is_lost_is_not_sent_again(number: int, tmp_path: Path) -> None:
    store = Store()
    store.after = {number: LOST}
    await sent(store, tmp_path)
    assert (store.held, store.parts) == (DATA, 4)


async def test_a_refusal_to_begin_is_told(tmp_path: Path) -> None:
    class Closed(Store):
        async def begin_upload(self, request: UploadRequest) -> UploadStatus:
            raise Refused(problem("not-allowed", f"not for {request.project}"))

    with pytest.raises(Refused, match="not for web"):
        await sent(Closed(), tmp_path)


async def test_a_part_that_is_refused_for_good_ends_the_upload(tmp_path: Path) -> None:
    class Full(Store):
        async def upload_part(self, _: str, offset: int, part: bytes) -> UploadStatus:
            self.parts += 1
            assert self.parts < 50, "the same part is sent for ever"
            raise Refused(problem("not-allowed", "no longer"))

    with pytest.raises(Refused, match="no longer"):
        await sent(Full(), tmp_path)


async def test_a_control_plane_that_takes_no_part_is_not_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Store):
        async def upload_part(self, _: str, offset: int, part: bytes) -> UploadStatus:
            raise Unavailable(problem("storage-full", "its disk is full"))

    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
    with pytest.raises(Unavailable, match="its disk is full"):
        await sent(Full(), tmp_path)
