"""What every place for an attempt does, with the log that begins in it: on a disk, and the fake."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pierhead.protocol.archive import ArchiveError
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import IntegrityError, LeaseLost, TokenRefused, Unavailable
from pierhead.protocol.lease import LogAccepted
from pierhead.protocol.plan import ContextRef
from pierhead.protocol.problem import problem
from pierhead.runner.adapters import spool as spools
from pierhead.runner.adapters import workspace as workspaces
from pierhead.runner.adapters.workspace import DiskWorkspace
from pierhead.runner.ports import Workspace
from pierhead.runner.testing import FakeHold, FakeWorkspace, away, grant, reference
from tests.contexts import described
from tests.unit.runner.test_workspace import archive

DOCKERFILE = b"FROM scratch\nCOPY . /\n" * 100


@dataclass
class CutHold(FakeHold):
    """The router behind a network that cuts: a context after so many bytes, a log part's answer."""

    cuts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    answers_lost: int = 0

    async def context(self, offset: int) -> AsyncIterator[bytes]:
        self.offsets.append(offset)
        if not self.cuts:
            yield self.packed[offset:]
            return
        yield self.packed[offset : offset + self.cuts.pop(0)]
        raise away()

    async def append_log(self, offset: int, data: bytes) -> LogAccepted:
        accepted = await super().append_log(offset, data)
        if self.answers_lost:
            self.answers_lost -= 1
            raise away()
        return accepted


class Site(ABC):
    """Where workspaces are made, and contexts that they understand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work" / "b_one.1"
        self.folder.parent.mkdir()

    @abstractmethod
    def open(self) -> Workspace:
        """Return the attempt's workspace."""

    @abstractmethod
    def packed(self, dockerfile: bytes) -> tuple[bytes, ContextRef]:
        """Return a context with one file, as it comes, and what names it."""


class DiskSite(Site):
    def open(self) -> Workspace:
        return DiskWorkspace(self.folder)

    def packed(self, dockerfile: bytes) -> tuple[bytes, ContextRef]:
        return archive(described({"Dockerfile": dockerfile}))


class FakeSite(Site):
    def open(self) -> Workspace:
        return FakeWorkspace(self.folder)

    def packed(self, dockerfile: bytes) -> tuple[bytes, ContextRef]:
        return dockerfile, reference(dockerfile)


@pytest.fixture(params=["fake", "disk"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(spools, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(spools, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(workspaces, "AGAIN_SECONDS", 0.0)
    return FakeSite(tmp_path) if request.param == "fake" else DiskSite(tmp_path)


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# The folder.


def test_it_begins_empty_whatever_was_left(site: Site) -> None:
    first = site.open()
    (first.folder / "left").mkdir()
    (first.folder / "left" / "file").touch()

    again = site.open()

    assert again.folder == site.folder
    assert list(again.folder.iterdir()) == []


def test_a_place_where_nothing_can_be_made_is_an_error_of_the_system(site: Site) -> None:
    site.folder.parent.rmdir()
    site.folder.parent.touch()

    with pytest.raises(OSError, match=r"exists|directory"):
        site.open()


async def test_all_of_it_is_removed_with_its_log_and_again(site: Site) -> None:
    workspace = site.open()
    (workspace.folder / "image").mkdir()
    (workspace.folder / "image" / "file").touch()
    spool = workspace.spool(FakeHold(grant()))
    spool.write(b"line\n")
    spool.close()

    for _ in range(2):
        await workspace.remove()

    assert list(site.folder.parent.iterdir()) == []


def test_the_disk_is_looked_at_and_a_folder_that_is_gone_has_none(site: Site) -> None:
    workspace = site.open()
    disk = workspace.disk()
    assert 0 < disk.free_bytes <= disk.total_bytes

    site.folder.rmdir()

    with pytest.raises(FileNotFoundError):
        workspace.disk()


# The context.


async def test_a_context_is_there_as_it_was_wanted_and_nothing_beside_it(site: Site) -> None:
    packed, wanted = site.packed(DOCKERFILE)
    workspace = site.open()

    root = await workspace.fetch(FakeHold(grant(), packed=packed), wanted)

    assert root.parent == workspace.folder
    assert files_in(workspace.folder) == {f"{root.name}/Dockerfile": DOCKERFILE}


async def test_of_a_context_that_was_lent_only_what_is_wanted_stays(site: Site) -> None:
    packed, wanted = site.packed(DOCKERFILE)
    workspace = site.open()
    root = workspace.folder / "context"
    (root / "old").mkdir(parents=True)
    (root / "old" / "file").touch()
    (root / "Dockerfile").write_bytes(b"FROM another\n")

    assert await workspace.fetch(FakeHold(grant(), packed=packed), wanted) == root

    assert files_in(root) == {"Dockerfile": DOCKERFILE}


async def test_a_context_goes_on_where_it_was_cut(site: Site) -> None:
    packed, wanted = site.packed(DOCKERFILE)
    hold = CutHold(grant(), packed=packed, cuts=[10, 0, 7])

    root = await site.open().fetch(hold, wanted)

    assert files_in(root) == {"Dockerfile": DOCKERFILE}
    assert hold.offsets == [0, 10, 10, 17]


async def test_a_context_that_never_comes_is_given_up(site: Site) -> None:
    packed, wanted = site.packed(DOCKERFILE)

    with pytest.raises(Unavailable):
        await site.open().fetch(CutHold(grant(), packed=packed, cuts=[0] * 1000), wanted)


@pytest.mark.parametrize("what", ["another", "cut short", "nothing", "without an end"])
async def test_another_context_than_was_promised_is_refused(site: Site, what: str) -> None:
    packed, wanted = site.packed(DOCKERFILE)
    match what:
        case "another":
            packed, _ = site.packed(DOCKERFILE.replace(b"scratch", b"busybox"))
        case "cut short":
            packed = packed[:-1]
        case "nothing":
            packed = b""
        case _:
            packed += bytes(3 * 2**20)

    with pytest.raises((IntegrityError, ArchiveError)):
        await site.open().fetch(FakeHold(grant(), packed=packed), wanted)


async def test_a_lost_lease_ends_the_fetching(site: Site) -> None:
    _, wanted = site.packed(DOCKERFILE)

    with pytest.raises(LeaseLost):
        await site.open().fetch(FakeHold(grant(), lost=True), wanted)


async def test_a_fetch_that_is_cancelled_can_be_removed(site: Site) -> None:
    packed, wanted = site.packed(DOCKERFILE)
    hold = FakeHold(grant(), packed=packed, fetching=asyncio.Event())
    workspace = site.open()
    fetching = asyncio.create_task(workspace.fetch(hold, wanted))
    while not hold.story:  # noqa: ASYNC110 - the fake does not know what is waited for
        await asyncio.sleep(0)

    fetching.cancel()
    await asyncio.wait({fetching})
    await workspace.remove()

    assert fetching.cancelled()
    assert list(site.folder.parent.iterdir()) == []


# The log.


async def sent(site: Site, hold: FakeHold, *writes: bytes) -> None:
    """Send a log to its end, and look whether it says the truth of itself."""
    spool = site.open().spool(hold)
    for data in writes:
        spool.write(data)
    for _ in range(2):
        spool.close()
    assert (spool.size, spool.digest) == (len(b"".join(writes)), digest_of(b"".join(writes)))
    await spool.send()
    assert bytes(hold.log) == b"".join(writes)


async def test_a_log_arrives_whole_and_in_order(site: Site) -> None:
    await sent(site, FakeHold(grant()), *(b"%d\n" % number * 100 for number in range(2000)))


async def test_an_empty_log_ends_without_a_call(site: Site) -> None:
    hold = FakeHold(grant())

    await sent(site, hold)

    assert hold.story == []


async def test_an_answer_that_is_lost_loses_and_doubles_nothing(site: Site) -> None:
    hold = CutHold(grant(), answers_lost=3)

    await sent(site, hold, *[b"line\n" * 20_000] * 8)

    assert hold.answers_lost == 0


async def test_what_is_written_arrives_while_the_build_goes_on(site: Site) -> None:
    hold = FakeHold(grant())
    spool = site.open().spool(hold)
    sending = asyncio.create_task(spool.send())

    for line in (b"one\n", b"two\n"):
        spool.write(line)
        async with asyncio.timeout(60):
            while not hold.log.endswith(line):  # noqa: ASYNC110 - the fake does not know
                await asyncio.sleep(0.001)

    assert not sending.done()
    spool.close()
    await sending
    assert bytes(hold.log) == b"one\ntwo\n"


async def test_a_router_that_has_less_than_it_said_gets_the_rest_again(site: Site) -> None:
    hold = FakeHold(grant())
    spool = site.open().spool(hold)
    sending = asyncio.create_task(spool.send())
    spool.write(b"one\ntwo\n")
    async with asyncio.timeout(60):
        while len(hold.log) != 8:  # noqa: ASYNC110 - the fake does not know
            await asyncio.sleep(0.001)

    del hold.log[4:]
    spool.write(b"three\n")
    spool.close()
    await sending

    assert bytes(hold.log) == b"one\ntwo\nthree\n"


async def test_a_sending_that_was_cancelled_goes_on_where_it_was(site: Site) -> None:
    hold = FakeHold(grant())
    spool = site.open().spool(hold)
    spool.write(b"one\n")
    first = asyncio.create_task(spool.send())
    async with asyncio.timeout(60):
        while not hold.log:  # noqa: ASYNC110 - the fake does not know
            await asyncio.sleep(0.001)
    first.cancel()
    await asyncio.wait({first})

    spool.write(b"two\n")
    spool.close()
    await spool.send()

    assert bytes(hold.log) == b"one\ntwo\n"


async def test_a_lost_lease_ends_the_sending(site: Site) -> None:
    spool = site.open().spool(FakeHold(grant(), lost=True))
    spool.write(b"one\n")
    spool.close()

    with pytest.raises(LeaseLost):
        await spool.send()


async def test_a_refusal_that_names_no_place_to_go_on_ends_the_sending(site: Site) -> None:
    spent = TokenRefused(problem("token-spent", "it has its result"))
    hold = FakeHold(grant(), failing={"append_log": deque([spent])})
    spool = site.open().spool(hold)
    spool.write(b"one\n")
    spool.close()

    with pytest.raises(TokenRefused):
        await spool.send()
