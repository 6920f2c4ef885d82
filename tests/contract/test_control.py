"""What a runner may count on at every router: the real one over HTTP, and the engine's fake."""

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.client.trust import Trust
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import IntegrityError, Invalid, LeaseLost, Refused
from pierhead.protocol.lease import Acquire, Acquired, Grant, Held
from pierhead.protocol.plan import Plan
from pierhead.protocol.result import Envelope, Failure
from pierhead.runner.adapters.router import HttpControl, Way
from pierhead.runner.ports import Built, Control, Hold
from pierhead.runner.testing import FakeControl, FakeHold, built, grant
from tests.integration.router.stage import House, capabilities

FAILED = Envelope(outcome="failed", failure=Failure(cause="command", message="exit code 7"))
SECRETS = {"npm": b"a value\0", "empty": b""}


_numbers: Iterator[int] = itertools.count(1)


class Town(ABC):
    """A router, and what happens there."""

    control: Control

    def __init__(self) -> None:
        self._holds: list[Hold] = []

    def attempt(self, found: Grant) -> Hold:
        """Return the calls of an attempt."""
        self._holds.append(self.control.attempt(found))
        return self._holds[-1]

    async def close(self) -> None:
        """Close all connections, and leave no build to the next test."""
        for hold in self._holds:
            await hold.close()

    @abstractmethod
    async def submit(self, *, secret: bool = False) -> str:
        """Let a build wait for the runner, and return its id."""

    @abstractmethod
    async def cancel(self, build_id: str) -> None:
        """Wish the end of a build."""

    @abstractmethod
    async def take_back(self, build_id: str) -> None:
        """Give an attempt up, as if its runner had fallen silent."""

    @abstractmethod
    async def log_of(self, build_id: str) -> bytes:
        """Return the log that the router has."""


class RealTown(Town):
    def __init__(self, house: House, credential: str) -> None:
        super().__init__()
        self._house = house
        self._builds: list[str] = []
        self.control: HttpControl = HttpControl(Way(house.url, Trust(None)), credential, "state")

    async def submit(self, *, secret: bool = False) -> str:
        secrets = SECRETS if secret else {}
        self._builds.append((await self._house.submit(if_nobody="wait", secrets=secrets)).id)
        return self._builds[-1]

    async def close(self) -> None:
        await super().close()
        await self.control.close()
        for build_id in self._builds:
            with contextlib.suppress(LeaseLost):  # it has ended
                await self.cancel(build_id)

    async def cancel(self, build_id: str) -> None:
        await self._house.owner.cancel(build_id, CancelRequest())

    async def take_back(self, build_id: str) -> None:
        self._house.clock.advance(26)
        await self._house.router.sweep.once()

    async def log_of(self, build_id: str) -> bytes:
        return await self._house.owner.log(build_id)


class FakeTown(Town):
    def __init__(self) -> None:
        super().__init__()
        self._grants: list[Grant] = []
        self.control: FakeControl = FakeControl()

    def _hold(self, build_id: str) -> FakeHold:
        return self.control.holds[build_id, 1]

    async def submit(self, *, secret: bool = False) -> str:
        self._grants.append(grant(f"b_{len(self._grants)}"))
        if secret:
            wanted = msgspec.structs.replace(self._grants[-1], plan=Plan(secrets=tuple(SECRETS)))
            self._grants[-1] = wanted
            self.control.hold(wanted).values = SECRETS
        self.control.say(Acquired(grants=(self._grants[-1],)))
        return self._grants[-1].build_id

    async def cancel(self, build_id: str) -> None:
        self._hold(build_id).cancelled.set()

    async def take_back(self, build_id: str) -> None:
        self._hold(build_id).lost = True

    async def log_of(self, build_id: str) -> bytes:
        return bytes(self._hold(build_id).log)


@pytest.fixture(params=["fake", "http"])
async def town(request: pytest.FixtureRequest, house: House) -> AsyncIterator[Town]:
    if request.param == "fake":
        yield FakeTown()
        return
    name = f"runner-{next(_numbers)}"
    town = RealTown(house, await house.credential(name))
    yield town
    await town.close()


async def opened(town: Town, process: str = "first") -> str:
    return (await town.control.open_session(process, capabilities())).session_id


def request(
    session: str, turn: int = 1, *held: Held, slots: int = 1, hold_ms: int = 25_000
) -> Acquire:
    return Acquire(
        session_id=session,
        request_id=f"{session}-request-{turn}",
        turn=turn,
        slots=slots,
        held=held,
        hold_ms=hold_ms,
    )


async def granted(town: Town, *, secret: bool = False) -> tuple[Grant, Hold]:
    """Submit a build, and be given it."""
    build_id = await town.submit(secret=secret)
    [found] = (await town.control.acquire(request(await opened(town)))).grants
    assert found.build_id == build_id
    return found, town.attempt(found)


async def pushed(hold: Hold, folder: Path) -> tuple[Built, Envelope]:
    """Push an image, and return it with the result that says so."""
    image = built(folder)
    await hold.push(image)
    platform = image.image.platform
    return image, Envelope(
        outcome="succeeded",
        manifest_digest=platform.manifest_digest,
        config_digest=platform.config_digest,
        platforms=(platform,),
        config=image.image.config,
        log_digest=digest_of(b""),
    )


async def drained(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


# The runner's own calls.


async def test_the_same_process_has_the_same_session_and_another_takes_over(town: Town) -> None:
    first = await opened(town)

    assert await opened(town) == first
    second = await opened(town, "second")
    assert second != first
    with pytest.raises(Refused) as refused:
        await town.control.acquire(request(first))
    assert refused.value.problem.slug == "session-superseded"
    await town.submit()
    assert (await town.control.acquire(request(second))).grants


async def test_the_repeat_of_a_request_gets_the_same_grant_and_no_second_build(town: Town) -> None:
    asking = request(await opened(town))
    for _ in range(2):
        await town.submit()

    first = await town.control.acquire(asking)

    assert len(first.grants) == 1
    assert await town.control.acquire(asking) == first


async def test_a_request_waits_for_a_build_and_one_that_was_given_up_takes_none(town: Town) -> None:
    session = await opened(town)
    given_up = asyncio.create_task(town.control.acquire(request(session, 1)))
    done, _ = await asyncio.wait({given_up}, timeout=0.05)
    assert not done
    given_up.cancel()
    await asyncio.wait({given_up})

    waiting = asyncio.create_task(town.control.acquire(request(session, 2)))
    build_id = await town.submit()

    async with asyncio.timeout(60):
        assert [one.build_id for one in (await waiting).grants] == [build_id]


async def test_nobody_is_given_more_than_was_asked_for_nor_held_for_longer(town: Town) -> None:
    session = await opened(town)
    build_id = await town.submit()

    for turn, hold_ms in ((1, 0), (2, 20)):
        asking = request(session, turn, slots=0, hold_ms=hold_ms)
        async with asyncio.timeout(20):
            assert await town.control.acquire(asking) == Acquired()

    [found] = (await town.control.acquire(request(session, 3))).grants
    assert found.build_id == build_id


async def test_what_is_held_in_vain_is_to_be_dropped(town: Town) -> None:
    session = await opened(town)
    await town.submit()
    [found] = (await town.control.acquire(request(session, 1))).grants
    town.attempt(found)
    mine = Held(build_id=found.build_id, fence=found.fence)

    await town.take_back(found.build_id)
    answer = await town.control.acquire(request(session, 2, mine))

    assert answer.drop == (mine,)


async def test_a_process_that_said_goodbye_is_given_nothing(town: Town) -> None:
    session = await opened(town)

    for _ in range(2):
        await town.control.release_session(session)

    with pytest.raises(Refused) as refused:
        await town.control.acquire(request(session))
    assert refused.value.problem.slug == "session-superseded"


# An attempt's calls.


async def test_the_context_is_read_from_any_place_and_ends(town: Town) -> None:
    _, hold = await granted(town)

    whole = await drained(hold.context(0))

    assert whole
    for offset in (0, 1, len(whole) - 1, len(whole)):
        assert await drained(hold.context(offset)) == whole[offset:]


async def test_secrets_come_as_they_were_and_again(town: Town) -> None:
    found, hold = await granted(town, secret=True)

    assert sorted(found.plan.secrets) == sorted(SECRETS)
    for _ in range(2):
        assert await hold.secrets() == SECRETS


async def test_a_build_without_secrets_has_none(town: Town) -> None:
    _, hold = await granted(town)

    assert await hold.secrets() == {}


async def test_a_wish_to_cancel_is_heard_in_every_way(town: Town) -> None:
    found, hold = await granted(town)
    assert await hold.enter("fetching") is False
    waiting = asyncio.create_task(hold.signals())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done

    await town.cancel(found.build_id)

    async with asyncio.timeout(60):
        assert (await waiting).cancel_requested
        assert (await hold.signals()).cancel_requested  # and who asks later hears it as well
    assert await hold.enter("building") is True
    assert (await hold.append_log(0, b"line\n")).cancel_requested


async def test_a_log_has_no_gap_and_no_byte_twice(town: Town) -> None:
    found, hold = await granted(town)

    assert (await hold.append_log(0, b"one\ntwo\n")).next_offset == 8
    assert (await hold.append_log(0, b"one\ntwo\n")).next_offset == 8  # its answer was lost
    assert (await hold.append_log(4, b"two\nthree\n")).next_offset == 14
    with pytest.raises(Refused) as refused:
        await hold.append_log(15, b"five\n")

    assert refused.value.problem.slug == "offset-mismatch"
    assert refused.value.problem.next_offset == 14
    assert await town.log_of(found.build_id) == b"one\ntwo\nthree\n"


async def test_a_part_of_a_log_has_a_bound(town: Town) -> None:
    found, hold = await granted(town)
    part = bytes(range(32, 96)) * 4096

    assert (await hold.append_log(0, part)).next_offset == 256 * 1024
    with pytest.raises(Invalid):
        await hold.append_log(256 * 1024, part + b"!")

    assert await town.log_of(found.build_id) == part


async def test_what_is_there_of_an_image_is_not_sent_again(town: Town, tmp_path: Path) -> None:
    _, hold = await granted(town)
    image = built(tmp_path / "layout")

    first, second = await hold.push(image), await hold.push(image)

    layers = image.image.platform.size_bytes
    assert (first.sent_layers, first.present_bytes) == (1, 0)
    assert first.sent_bytes > layers
    assert (second.sent_layers, second.sent_bytes) == (0, 0)
    assert second.present_bytes >= layers


async def test_a_push_that_was_cancelled_can_be_done_again(town: Town, tmp_path: Path) -> None:
    _, hold = await granted(town)
    image = built(tmp_path / "first")
    pushing = asyncio.create_task(hold.push(image))
    await asyncio.sleep(0.005)
    pushing.cancel()
    await asyncio.wait({pushing})

    _, envelope = await pushed(hold, tmp_path / "second")

    assert (await hold.report(envelope)).state == "succeeded"


async def test_a_result_is_taken_once_and_its_repeat_has_the_same_receipt(
    town: Town, tmp_path: Path
) -> None:
    found, hold = await granted(town)
    _, envelope = await pushed(hold, tmp_path / "layout")

    first = await hold.report(envelope)

    assert (first.build_id, first.fence, first.state) == (found.build_id, 1, "succeeded")
    assert await hold.report(envelope) == first
    with pytest.raises(Refused):
        await hold.report(FAILED)
    assert await hold.report(envelope) == first


async def test_an_image_that_was_not_pushed_is_no_result_and_ends_the_build(
    town: Town, tmp_path: Path
) -> None:
    _, hold = await granted(town)
    _, envelope = await pushed(hold, tmp_path / "layout")
    other = digest_of(b"another")
    [platform] = envelope.platforms
    forged = msgspec.structs.replace(
        envelope,
        manifest_digest=other,
        platforms=(msgspec.structs.replace(platform, manifest_digest=other),),
    )

    with pytest.raises(IntegrityError):
        await hold.report(forged)

    with pytest.raises(Refused):
        await hold.report(envelope)


async def test_only_what_somebody_wished_to_cancel_is_cancelled(town: Town) -> None:
    _, hold = await granted(town)

    with pytest.raises(IntegrityError):
        await hold.report(Envelope(outcome="cancelled"))


async def test_a_result_that_crossed_the_wish_to_cancel_is_none(town: Town) -> None:
    found, hold = await granted(town)
    await town.cancel(found.build_id)

    assert (await hold.report(FAILED)).state == "cancelled"


def calls(hold: Hold, image: Built) -> list[Callable[[], Awaitable[object]]]:
    """Return all that an attempt can ask for."""
    return [
        lambda: drained(hold.context(0)),
        hold.secrets,
        lambda: hold.enter("building"),
        hold.signals,
        lambda: hold.append_log(0, b"late\n"),
        lambda: hold.release("draining", ""),
        lambda: hold.report(FAILED),
        # Of a registry, this is known only not to be allowed.
        lambda: hold.push(image),
    ]


@pytest.mark.parametrize("end", ["taken back", "released", "cancelled", "reported"])
async def test_who_has_a_build_no_longer_is_refused_everything(
    town: Town, tmp_path: Path, end: str
) -> None:
    found, hold = await granted(town)
    image = built(tmp_path / "layout")
    match end:
        case "taken back":
            await town.take_back(found.build_id)
        case "released":
            await hold.release("draining", "the machine goes down")
        case "cancelled":
            await town.cancel(found.build_id)
            await hold.release("draining", "")
        case _:
            await hold.report(msgspec.structs.replace(FAILED, warnings=("another result",)))

    *told, push = calls(hold, image)
    for call in told:
        with pytest.raises(LeaseLost):
            await call()
    with pytest.raises(Refused):
        await push()
    # Or nothing that takes too long in this task would be told as that any more.
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
