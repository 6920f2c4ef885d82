"""What every keeper of leases does, asked of the real process at a real router and of the fake."""

import asyncio
import contextlib
import itertools
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from pierhead.protocol.lease import Grant, Held
from pierhead.runner.adapters.keeper import KeeperProcess
from pierhead.runner.ports import Group, Keeper
from pierhead.runner.testing import FakeKeeper, grant
from tests.contract.test_control import RealTown, opened, request
from tests.integration.router.stage import House
from tests.sight import is_gone

RENEW_MS = 20
RENEWALS = 25  # after so many that did not come, none comes
_numbers: Iterator[int] = itertools.count(1)


@dataclass
class Heard:
    """What the runner is told of one lease."""

    lost: list[str] = field(default_factory=list)
    cancelled: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def lose(self, reason: str) -> None:
        self.lost.append(reason)
        self.more.set()

    def cancel(self) -> None:
        self.cancelled += 1
        self.more.set()

    async def something(self) -> None:
        async with asyncio.timeout(60):
            await self.more.wait()
        self.more.clear()


class Watch(ABC):
    """A keeper, the router that it talks to, and processes to watch over."""

    keeper: Keeper

    @abstractmethod
    async def leased(self) -> Grant:
        """Return a grant that nobody renews yet."""

    @abstractmethod
    async def renewals(self, build_id: str) -> None:
        """Wait until a lease that is held was renewed more than once."""

    @abstractmethod
    async def is_left_alone(self, build_id: str) -> bool:
        """Say whether nobody renews a lease any more, after several times the time for it."""

    @abstractmethod
    async def cancel(self, build_id: str) -> None:
        """Wish the end of a build, at the router."""

    @abstractmethod
    async def take_back(self, build_id: str) -> None:
        """Let a lease be nobody's any more, at the router."""

    @abstractmethod
    async def group(self, name: str) -> Group:
        """Start a process in a group of its own."""

    @abstractmethod
    def runs(self, group: Group) -> bool:
        """Say whether a group goes on."""

    async def ended(self, *groups: Group) -> None:
        """Return when none of the groups runs: whoever is killed may take a moment to be gone."""
        async with asyncio.timeout(60):
            while any(map(self.runs, groups)):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.005)

    def hold(self, found: Grant, *groups: Group) -> Heard:
        """Hold a lease, and keep groups of its build."""
        heard = Heard()
        self.keeper.hold(found, heard.lose, heard.cancel)
        for group in groups:
            self.keeper.keep(group)
        return heard


class RealWatch(Watch):
    def __init__(self, house: House, town: RealTown, keeper: KeeperProcess) -> None:
        self._house, self._town = house, town
        self._processes: list[asyncio.subprocess.Process] = []
        self._turns: Iterator[int] = itertools.count(1)
        self._session: str | None = None
        self._held: list[Held] = []
        self.keeper: KeeperProcess = keeper

    async def leased(self) -> Grant:
        await self._town.submit()
        self._session = self._session or await opened(self._town)
        asking = request(self._session, next(self._turns), *self._held)
        [found] = (await self._town.control.acquire(asking)).grants
        self._held.append(Held(build_id=found.build_id, fence=found.fence))
        return msgspec.structs.replace(found, renew_in_ms=RENEW_MS)

    async def renewals(self, build_id: str) -> None:
        for _ in range(3):
            before = await self._expires_at(build_id)
            async with asyncio.timeout(60):
                while await self._expires_at(build_id) == before:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.01)

    async def is_left_alone(self, build_id: str) -> bool:
        # What was on its way may take a while to arrive; a keeper that goes on never pauses so.
        seen: list[object] = []
        for _ in range(60):
            await asyncio.sleep(RENEWALS * RENEW_MS / 1000)
            seen.append(await self._expires_at(build_id))
            if seen[-4:] == [seen[-1]] * 4:
                return True
        return False

    async def _expires_at(self, build_id: str) -> object:
        stored = await self._house.router.sweep.store.read(lambda ledger: ledger.build(build_id))
        assert stored is not None
        return stored.build.lease and stored.build.lease.expires_at

    async def cancel(self, build_id: str) -> None:
        await self._town.cancel(build_id)

    async def take_back(self, build_id: str) -> None:
        # Of the runner's next process: what an older one held is nobody's.
        self._session = await opened(self._town, f"process-{next(_numbers)}")

    async def group(self, name: str) -> Group:
        started = await asyncio.create_subprocess_exec("sleep", "618", start_new_session=True)
        self._processes.append(started)
        return Group(name=name, pid=started.pid, cgroups=())

    def runs(self, group: Group) -> bool:
        return not is_gone(group.pid)

    async def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class FakeWatch(Watch):
    def __init__(self) -> None:
        self._count = 0
        self.keeper: FakeKeeper = FakeKeeper()

    async def leased(self) -> Grant:
        self._count += 1
        return grant(f"b_{self._count}")

    async def renewals(self, build_id: str) -> None:
        assert build_id in self.keeper.held

    async def is_left_alone(self, build_id: str) -> bool:
        return build_id not in self.keeper.held

    async def cancel(self, build_id: str) -> None:
        for _ in range(3):  # each answer to a renewal says it
            self.keeper.wish(build_id)

    async def take_back(self, build_id: str) -> None:
        self.keeper.lose(build_id, "the router says 409")

    async def group(self, name: str) -> Group:
        self._count += 1
        return Group(name=name, pid=self._count, cgroups=())

    def runs(self, group: Group) -> bool:
        return group not in self.keeper.killed


@pytest.fixture(params=["fake", "process"])
async def watch(request: pytest.FixtureRequest, house: House) -> AsyncIterator[Watch]:
    if request.param == "fake":
        yield FakeWatch()
        return
    town = RealTown(house, await house.credential(f"kept-{next(_numbers)}"))
    keeper = KeeperProcess(house.url)
    running = asyncio.create_task(keeper.run())
    watch = RealWatch(house, town, keeper)
    yield watch
    running.cancel()
    await asyncio.wait({running})
    await watch.close()
    await town.close()


def name_of(found: Grant) -> str:
    return f"{found.build_id}.{found.fence}"


async def test_a_lease_that_is_held_is_renewed_and_one_that_is_dropped_is_not(watch: Watch) -> None:
    found = await watch.leased()
    heard = watch.hold(found, group := await watch.group(name_of(found)))

    await watch.renewals(found.build_id)
    for _ in range(2):
        watch.keeper.drop(found.build_id)

    assert await watch.is_left_alone(found.build_id)
    assert watch.runs(group)  # it is the runner's business again
    await watch.cancel(found.build_id)
    await watch.take_back(found.build_id)
    assert await watch.is_left_alone(found.build_id)
    assert (heard.lost, heard.cancelled) == ([], 0)
    assert watch.runs(group)


async def test_a_wish_to_cancel_is_told_once_and_the_lease_goes_on(watch: Watch) -> None:
    found = await watch.leased()
    heard = watch.hold(found, group := await watch.group(name_of(found)))

    await watch.cancel(found.build_id)
    await heard.something()
    await watch.renewals(found.build_id)

    assert (heard.lost, heard.cancelled) == ([], 1)
    assert watch.runs(group)


async def test_a_lost_lease_is_told_once_and_why_and_its_processes_are_killed(watch: Watch) -> None:
    found = await watch.leased()
    groups = [await watch.group(name_of(found)) for _ in range(2)]
    heard = watch.hold(found, *groups)
    await watch.renewals(found.build_id)

    await watch.take_back(found.build_id)
    await heard.something()

    await watch.ended(*groups)
    assert len(heard.lost) == 1
    assert heard.lost[0].startswith("the router says ")
    await watch.cancel(found.build_id)
    await watch.take_back(found.build_id)
    assert (len(heard.lost), heard.cancelled) == (1, 0)


async def test_processes_of_a_build_that_is_not_held_are_left_alone(watch: Watch) -> None:
    found, other = await watch.leased(), await watch.leased()
    stray = await watch.group(name_of(other))
    watch.keeper.keep(stray)
    watch.hold(found, group := await watch.group(name_of(found)))
    await watch.renewals(found.build_id)

    await watch.take_back(found.build_id)
    await watch.ended(group)

    assert watch.runs(stray)


async def test_a_newer_attempt_takes_the_place_of_the_older_with_all_that_it_had(
    watch: Watch,
) -> None:
    found = await watch.leased()
    older = watch.hold(found, group := await watch.group(name_of(found)))
    newer = watch.hold(found, following := await watch.group(name_of(found)))
    await watch.renewals(found.build_id)

    await watch.take_back(found.build_id)
    await newer.something()

    await watch.ended(following)
    assert watch.runs(group)
    assert older.lost == []


async def test_one_lost_lease_is_not_another(watch: Watch) -> None:
    lost, other = await watch.leased(), await watch.leased()
    first = watch.hold(lost)
    second = watch.hold(other, group := await watch.group(name_of(other)))

    await watch.cancel(lost.build_id)
    await first.something()
    await watch.renewals(other.build_id)

    assert (second.lost, second.cancelled) == ([], 0)
    assert watch.runs(group)


async def test_a_keeper_that_cannot_be_started_is_started_as_soon_as_it_can(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hidden:
        hidden.setattr(sys, "executable", "/nowhere")
        keeper = KeeperProcess(house.url)
        running = asyncio.create_task(keeper.run())
        done, _ = await asyncio.wait({running}, timeout=0.1)
        assert not done

    async with asyncio.timeout(60):
        while keeper.pid is None:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})


async def test_what_is_told_of_an_older_attempt_is_not_taken_for_the_newer() -> None:
    keeper = KeeperProcess("http://127.0.0.1:1")  # where nobody answers
    running = asyncio.create_task(keeper.run())
    process = await asyncio.create_subprocess_exec("sleep", "618", start_new_session=True)
    older, newer = Heard(), Heard()
    short = msgspec.structs.replace(grant(), lease_ttl_ms=200, renew_in_ms=RENEW_MS)

    keeper.hold(short, older.lose, older.cancel)
    keeper.keep(Group(name=name_of(short), pid=process.pid, cgroups=()))
    while keeper.pid is None:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    while not is_gone(process.pid):
        time.sleep(0.01)  # noqa: ASYNC251 - meanwhile this side must hear nothing
    time.sleep(0.1)  # noqa: ASYNC251
    keeper.hold(grant(fence=2), newer.lose, newer.cancel)
    await asyncio.sleep(0.2)

    assert (older.lost, newer.lost) == ([], [])
    running.cancel()
    await asyncio.wait({running})
    await process.wait()
