"""The engine carries every build to exactly one end, whatever is lost on the way."""

import asyncio
import errno
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest

from pierhead.protocol.errors import (
    IntegrityError,
    Invalid,
    LeaseLost,
    ProtocolMismatch,
    Refused,
    TokenRefused,
    Unavailable,
)
from pierhead.protocol.lease import Acquired, Grant, Held
from pierhead.protocol.plan import Plan
from pierhead.protocol.problem import problem
from pierhead.protocol.result import CacheUse, Failure
from pierhead.runner import engine as engines
from pierhead.runner import job as jobs
from pierhead.runner.domain.failure import Disk
from pierhead.runner.engine import Engine, Limits
from pierhead.runner.ports import Broken
from pierhead.runner.testing import (
    FakeBackend,
    FakeControl,
    FakeGround,
    FakeHold,
    FakeKeeper,
    FakeWorkspace,
    away,
    built,
    grant,
)

DISKS: dict[str, Disk] = {}  # of attempts


@dataclass
class Stage:
    control: FakeControl
    backend: FakeBackend
    keeper: FakeKeeper
    ground: FakeGround
    engine: Engine
    running: "asyncio.Task[None]"

    async def end(self) -> None:
        """Let everything under way finish."""
        self.engine.drain()
        await self.running


Start = Callable[[FakeBackend], Awaitable[Stage]]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - the fakes do not know what is waited for
            await asyncio.sleep(0.001)


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    monkeypatch.setattr(engines, "LOOK_SECONDS", 0.001)
    stages: list[Stage] = []

    async def begin(backend: FakeBackend) -> Stage:
        control, keeper, ground = FakeControl(), FakeKeeper(), FakeGround()
        numbers = itertools.count(1)
        engine = Engine(
            control,
            backend,
            keeper,
            ground=ground,
            work=tmp_path / "work",
            limits=Limits(),
            open_workspace=partial(FakeWorkspace, disks=DISKS),
            new_id=lambda: f"id{next(numbers)}",
            jitter=lambda _: 0.0,
        )
        running = asyncio.create_task(engine.run())
        stages.append(Stage(control, backend, keeper, ground, engine, running))
        return stages[-1]

    yield begin
    for stage in stages:
        stage.running.cancel()
        await asyncio.gather(stage.running, return_exceptions=True)


async def granted(stage: Stage, build_id: str = "b_one", fence: int = 1) -> FakeHold:
    wanted = grant(build_id, fence)
    stage.control.say(Acquired(grants=(wanted,)))
    hold = stage.control.hold(wanted)
    await until(lambda: hold.story)
    return hold


async def test_a_build_is_pushed_and_reported_once_its_log_is_there(
    start: Start, tmp_path: Path
) -> None:
    stage = await start(FakeBackend())
    hold = await granted(stage)

    await stage.end()

    assert [line for line in hold.story if line.startswith(("enter", "push", "report"))] == [
        "enter fetching",
        "enter building",
        "enter pushing",
        f"push {built(tmp_path / 'layout').image.platform.manifest_digest}",
        "enter reporting",
        f"report succeeded after {len(stage.backend.output)} bytes of log",
    ]
    [envelope] = hold.envelopes
    assert envelope.log_bytes == len(hold.log)
    assert hold.story[-1] == "close"
    assert stage.backend.stopped == ["b_one.1"]
    assert stage.keeper.held == {}


async def test_a_request_whose_answer_is_lost_is_the_same_request_again(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.control.say(away(), away(), away(), Acquired(grants=(grant(),)))
    await until(lambda: len(stage.control.asked) >= 5)
    await stage.end()

    first = stage.control.asked[:4]
    assert {request.request_id for request in first} == {first[0].request_id}
    assert stage.control.asked[4].request_id != first[0].request_id
    assert stage.control.asked[4].turn > first[0].turn


async def test_a_runner_of_another_version_waits_for_the_upgrade_and_goes_on(start: Start) -> None:
    other = ProtocolMismatch(problem("version-unsupported", "no common version"))
    stage = await start(FakeBackend())
    stage.control.say(other, Acquired(grants=(grant(),)))
    hold = stage.control.hold(grant())
    await until(lambda: hold.envelopes)
    await stage.end()

    assert stage.control.asked[0].request_id == stage.control.asked[1].request_id
    assert engines._patience(other, 0.25) == engines.MISMATCH_SECONDS
    assert engines._patience(away(), 0.25) == 0.25


async def test_a_change_repeats_the_unanswered_request_with_what_is_true_now(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    await granted(stage)
    await until(lambda: len(stage.control.asked) == 2)
    stage.backend.gate.set()
    await until(lambda: len(stage.control.asked) == 3)
    await stage.end()

    before, after = stage.control.asked[1:3]
    assert before.request_id == after.request_id
    assert before.held == (Held(build_id="b_one", fence=1),)
    assert (before.slots, after.slots) == (1, 2)
    assert after.held == ()


async def test_the_same_grant_twice_is_built_once(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    await granted(stage)
    stage.control.say(Acquired(grants=(grant(),)))
    await until(lambda: len(stage.control.asked) == 3)
    stage.backend.gate.set()
    await stage.end()

    assert stage.backend.begun == ["b_one.1"]


async def test_a_newer_grant_waits_for_the_older_attempt_to_be_gone(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate, stage.backend.stopping = asyncio.Event(), asyncio.Event()
    older = await granted(stage)
    await until(lambda: stage.backend.begun)
    newer = grant(fence=2)
    stage.control.say(Acquired(grants=(newer,)))
    await until(lambda: len(stage.control.asked) == 3)

    assert Held(build_id="b_one", fence=2) in stage.control.asked[2].held
    assert stage.backend.begun == ["b_one.1"]
    stage.backend.stopping.set()
    stage.backend.gate.set()
    await until(lambda: "b_one.2" in stage.backend.stopped)
    await stage.end()

    assert older.envelopes == []
    assert [found.outcome for found in stage.control.hold(newer).envelopes] == ["succeeded"]


async def test_what_the_router_drops_is_ended_and_not_reported(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    stage.control.say(Acquired(drop=(Held(build_id="b_one", fence=1),)))
    await until(lambda: stage.backend.stopped)
    await stage.end()

    assert hold.envelopes == []
    assert not any(line.startswith("release") for line in hold.story)


async def test_a_drop_of_another_fence_is_not_ours(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage, fence=2)
    stage.control.say(Acquired(drop=(Held(build_id="b_one", fence=1),)))
    await until(lambda: len(stage.control.asked) == 3)
    stage.backend.gate.set()
    await stage.end()

    assert [found.outcome for found in hold.envelopes] == ["succeeded"]


@pytest.mark.parametrize("phase", ["fetching", "building", "pushing"])
async def test_a_cancel_in_any_phase_is_reported_with_its_proof(start: Start, phase: str) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    gate = asyncio.Event()
    match phase:
        case "fetching":
            hold.fetching = gate
        case "building":
            stage.backend.gate = gate
        case _:
            hold.pushing = gate
    await granted(stage)
    await until(lambda: f"enter {phase}" in hold.story)
    hold.cancelled.set()
    await until(lambda: hold.envelopes)
    await stage.end()

    [envelope] = hold.envelopes
    assert envelope.outcome == "cancelled"
    assert envelope.stop_proof is not None
    assert stage.backend.stopped == ["b_one.1"]


async def test_a_lease_that_the_keeper_lost_ends_the_build_silently(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    stage.keeper.lose("b_one", "no heartbeat got through in time")
    await until(lambda: stage.backend.stopped)
    await stage.end()

    assert hold.envelopes == []


async def test_a_lost_lease_beats_a_wish_to_cancel(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    stage.keeper.wish("b_one")
    stage.keeper.lose("b_one", "409")
    await stage.end()

    assert hold.envelopes == []


async def test_a_drain_lets_the_build_finish_and_takes_no_other(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    stage.engine.drain()
    await until(lambda: stage.control.asked[-1].reason == "draining")
    stage.backend.gate.set()
    await stage.running

    assert stage.control.asked[-1].slots == 0
    assert [found.outcome for found in hold.envelopes] == ["succeeded"]


async def test_an_abort_gives_the_build_back(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    stage.engine.abort()
    await stage.running

    assert "release draining" in hold.story
    assert hold.envelopes == []
    assert stage.backend.stopped == ["b_one.1"]


async def test_a_machine_that_can_build_nothing_says_why_and_looks_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LOOK_AGAIN_SECONDS", 0)
    sick = FakeBackend()
    sick.slots = 0
    stage = await start(sick)
    await until(lambda: stage.control.asked)
    stage.control.say(Acquired())
    await until(lambda: len(stage.control.asked) == 2)
    sick.slots = 2
    stage.control.say(Acquired())
    await until(lambda: len(stage.control.asked) == 3)
    await stage.end()

    assert [(one.slots, one.reason) for one in stage.control.asked] == [
        (0, "fake builds nothing"),
        (0, "fake builds nothing"),
        (2, None),
    ]
    assert stage.control.able[-1].slots == 2


async def test_a_machine_that_did_not_isolate_is_looked_at_again_ever_more_rarely(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LOOK_AGAIN_SECONDS", 0.01)
    open_one = FakeBackend()
    open_one.isolation = "none"
    stage = await start(open_one)
    for count in range(1, 4):
        await until(lambda wanted=count: len(stage.control.asked) == wanted)  # type: ignore[misc]
        await asyncio.sleep(0.03)
        stage.control.say(Acquired())
    looked = stage.engine._look_wait
    open_one.isolation = "full"
    while len(stage.control.able) < 2:  # it looks after an answer, if the time has come
        await asyncio.sleep(0.03)
        asked = len(stage.control.asked)
        stage.control.say(Acquired())
        await until(lambda before=asked: len(stage.control.asked) > before)  # type: ignore[misc]
    await stage.end()

    assert looked > 0.02
    assert [one.isolation for one in stage.control.able] == ["none", "full"]


async def test_a_runner_says_that_it_ends_when_it_has_nothing_any_more(start: Start) -> None:
    stage = await start(FakeBackend())
    hold = await granted(stage)

    await stage.end()

    assert hold.envelopes
    assert stage.control.ended == [("s_1", len(stage.control.asked))]


async def test_a_router_that_does_not_hear_the_goodbye_keeps_nobody(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.control.deaf = True
    await until(lambda: stage.control.asked)

    await stage.end()

    assert stage.control.ended == []


async def test_an_abort_does_not_wait_for_what_the_router_asked_to_wait(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.control.say(Acquired(retry_after_ms=3_600_000))
    await until(lambda: not stage.control.answers and stage.control.asked)
    stage.engine.abort()

    async with asyncio.timeout(20):
        await stage.running
    assert stage.running.done()


@pytest.mark.parametrize("error", [OSError("disk"), RuntimeError("x"), KeyError("y"), away()])
async def test_a_broken_machine_cleans_up_gives_back_and_rests(
    start: Start, error: Exception
) -> None:
    stage = await start(FakeBackend(error))
    hold = await granted(stage)
    await until(lambda: stage.control.asked[-1].reason)
    await stage.end()

    said = str(error) if isinstance(error, OSError) else ""
    assert f"release unhealthy {said}".strip() in hold.story
    assert stage.backend.stopped == ["b_one.1"]
    resting = next(request for request in stage.control.asked if request.reason)
    assert resting.slots == 0
    assert resting.reason == "resting after a broken build"


async def test_one_build_that_breaks_again_and_again_does_not_make_the_machine_rest_longer(
    start: Start,
) -> None:
    stage = await start(FakeBackend(OSError("disk")))
    for fence in range(1, 4):
        story = (await granted(stage, "b_one", fence)).story
        await until(partial(story.count, "close"))
        await rested(stage)
    await granted(stage, "b_two", 1)
    await until(lambda: "resting after 2 broken builds" in reasons(stage))
    await stage.end()

    assert reasons(stage) == {"resting after a broken build", "resting after 2 broken builds"}


async def rested(stage: Stage) -> None:
    """Return when the machine asks for builds again; its time of rest is over at once."""
    await until(lambda: stage.control.asked[-1].reason)
    stage.engine._rest_until = 0.0  # noticed while the router holds its request
    await until(lambda: stage.control.asked[-1].slots)


def reasons(stage: Stage) -> set[str]:
    return {request.reason for request in stage.control.asked if request.reason}


async def test_what_an_earlier_life_left_does_not_keep_a_runner_from_starting(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    current = os.open(tmp_path / "work", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=current)
        following = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = following
    os.close(current)

    stage = await start(FakeBackend())
    await until(lambda: stage.control.asked)
    await stage.end()

    assert list((tmp_path / "work").iterdir()) == []


async def test_a_failed_build_is_a_result_and_no_fault_of_the_machine(start: Start) -> None:
    failure = Failure(cause="command", message="exit code 7", exit_code=7)
    broken = Broken(failure=failure, cache=CacheUse(), peak_memory_bytes=5)
    stage = await start(FakeBackend(broken))
    hold = await granted(stage)
    await until(lambda: hold.envelopes)
    await stage.end()

    [envelope] = hold.envelopes
    assert (envelope.outcome, envelope.failure) == ("failed", failure)
    assert all(request.reason in {None, "draining"} for request in stage.control.asked)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_build_that_ends_early_says_how_long_it_took(
    start: Start, *, cancelled: bool
) -> None:
    failure = Failure(cause="command", message="exit code 7", exit_code=7)
    backend = FakeBackend(
        Broken(failure=failure, cache=CacheUse(), peak_memory_bytes=None), gate=asyncio.Event()
    )
    stage = await start(backend)
    hold = await granted(stage)
    await until(lambda: backend.begun)
    await asyncio.sleep(0.01)
    (hold.cancelled if cancelled else backend.gate or hold.cancelled).set()
    await until(lambda: hold.envelopes)
    await stage.end()

    assert hold.envelopes[0].outcome == ("cancelled" if cancelled else "failed")
    assert hold.envelopes[0].timings.building_ms >= 10
    assert hold.envelopes[0].timings.total_ms >= hold.envelopes[0].timings.building_ms


async def test_a_push_that_changes_the_image_is_an_integrity_failure(start: Start) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    hold.failing["push"] = deque([IntegrityError(problem("digest-mismatch", "another"))])
    await granted(stage)
    await stage.end()

    [envelope] = hold.envelopes
    assert envelope.failure is not None
    assert envelope.failure.cause == "integrity"


async def test_a_result_that_the_router_cannot_read_becomes_a_failure(start: Start) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    hold.failing["report"] = deque([Invalid(problem("invalid-document", "too long"))])
    await granted(stage)
    await stage.end()

    assert [found.outcome for found in hold.envelopes] == ["failed"]


async def test_a_lease_lost_in_a_push_ends_the_build_silently(start: Start) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    hold.failing["push"] = deque([LeaseLost(problem("lease-lost", "gone"))])
    await granted(stage)
    await stage.end()

    assert hold.envelopes == []
    assert stage.backend.stopped == ["b_one.1"]


async def test_an_outage_of_the_router_does_not_end_a_build(start: Start) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    hold.failing = {name: deque([away(), away()]) for name in ("enter", "append_log")}
    await granted(stage)
    await stage.end()

    assert [found.outcome for found in hold.envelopes] == ["succeeded"]
    assert bytes(hold.log) == stage.backend.output


async def test_a_router_that_is_away_at_the_start_is_waited_for(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.control.sessions.extend([away(), away()])
    hold = await granted(stage)
    await stage.end()

    assert hold.envelopes
    assert stage.backend.swept == 1


async def test_a_refused_credential_ends_the_runner_and_its_builds(start: Start) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    stage.control.say(TokenRefused(problem("unauthenticated", "no")))

    with pytest.raises(TokenRefused):
        await stage.running

    assert "release draining" in hold.story
    assert stage.backend.stopped == ["b_one.1"]


def with_secret() -> Grant:
    return msgspec.structs.replace(grant(), plan=Plan(secrets=("npm",)))


async def test_a_build_with_secrets_gets_them_and_one_without_does_not_ask(start: Start) -> None:
    stage = await start(FakeBackend())
    asking, other = with_secret(), grant("b_other")
    stage.control.hold(asking).values = {"npm": b"value"}
    stage.control.say(Acquired(grants=(asking, other)))
    await until(lambda: len(stage.backend.begun) == 2)
    await stage.end()

    assert sorted(stage.backend.secrets, key=len) == [{}, {"npm": b"value"}]
    assert "secrets" not in stage.control.hold(other).story


async def test_secrets_that_cannot_be_read_any_more_are_a_failure_and_not_tried_again(
    start: Start,
) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(with_secret())
    hold.failing["secrets"] = deque([Refused(problem("not-found", "they cannot be read"))])
    stage.control.say(Acquired(grants=(with_secret(),)))
    await until(lambda: hold.envelopes)
    await stage.end()

    failure = hold.envelopes[0].failure
    assert failure is not None
    assert (failure.cause, failure.message) == ("secret", "they cannot be read")
    assert stage.backend.begun == []


async def test_secrets_that_were_sealed_for_somebody_else_are_an_integrity_failure(
    start: Start,
) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(with_secret())
    hold.failing["secrets"] = deque([IntegrityError(problem("digest-mismatch", "not for us"))])
    stage.control.say(Acquired(grants=(with_secret(),)))
    await until(lambda: hold.envelopes)
    await stage.end()

    failure = hold.envelopes[0].failure
    assert failure is not None
    assert failure.cause == "integrity"


async def test_a_lease_that_is_lost_before_the_secrets_come_ends_the_build_silently(
    start: Start,
) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(with_secret())
    hold.failing["secrets"] = deque([LeaseLost(problem("lease-lost", "a newer attempt"))])
    stage.control.say(Acquired(grants=(with_secret(),)))
    await until(lambda: "close" in hold.story)
    await stage.end()

    assert hold.envelopes == []
    assert stage.backend.begun == []


LOW = Disk("/work", 10**8, 10**12)


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Disk]:
    monkeypatch.setattr(jobs, "LOOK_SECONDS", 0.001)
    fresh: dict[str, Disk] = {}
    monkeypatch.setattr("tests.unit.runner.test_engine.DISKS", fresh)
    return fresh


@pytest.mark.parametrize("phase", ["fetching", "pushing"])
async def test_a_disk_that_runs_low_ends_the_build_in_every_phase(
    start: Start, disks: dict[str, Disk], phase: str
) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    setattr(hold, phase, asyncio.Event())  # never set
    stage.control.say(Acquired(grants=(grant(),)))
    await until(lambda: f"enter {phase}" in hold.story)
    disks["b_one.1"] = LOW
    await until(lambda: hold.envelopes)
    await stage.end()

    [envelope] = hold.envelopes
    assert envelope.outcome == "failed"
    assert envelope.failure is not None
    assert (envelope.failure.cause, envelope.failure.message) == (
        "disk-full",
        "the runner's disk is full",
    )
    assert (envelope.failure.detail or "").startswith("100.0 MB of 1000.0 GB were free at /work")
    assert stage.backend.stopped == ["b_one.1"]


async def test_the_backend_looks_at_the_disk_while_it_builds(
    start: Start, disks: dict[str, Disk]
) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    disks["b_one.1"] = LOW
    await asyncio.sleep(0.01)
    del disks["b_one.1"]
    stage.backend.gate.set()
    await stage.end()

    assert hold.envelopes[0].outcome == "succeeded"


async def test_a_full_disk_of_the_control_plane_is_told_as_that(start: Start) -> None:
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    hold.failing["push"] = deque([Unavailable(problem("storage-full", "could not store it"))])
    stage.control.say(Acquired(grants=(grant(),)))
    await until(lambda: hold.envelopes)
    await stage.end()

    failure = hold.envelopes[0].failure
    assert failure is not None
    assert (failure.cause, failure.message) == ("disk-full", "the control plane's disk is full")


async def test_a_context_for_which_there_is_no_room_is_no_fault_of_the_machine(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FakeWorkspace, "fetch", full)
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    stage.control.say(Acquired(grants=(grant(),)))
    await until(lambda: hold.envelopes)
    await stage.end()

    failure = hold.envelopes[0].failure
    assert failure is not None
    assert failure.cause == "disk-full"


async def test_a_disk_that_filled_while_a_request_was_held_gives_the_build_back_at_once(
    start: Start, tmp_path: Path, disks: dict[str, Disk]
) -> None:
    stage = await start(FakeBackend())
    disks["b_one.1"] = LOW
    hold = await granted(stage)
    await until(lambda: hold.story[-1] == "close")
    await stage.end()

    said = "its disk is full: 100.0 MB of 1000.0 GB are free at /work"
    assert hold.story == [f"release draining {said}", "close"]
    assert stage.backend.begun == []
    assert stage.keeper.held == {}
    assert list((tmp_path / "work").iterdir()) == []
    # It is nobody's fault: the machine need not rest.
    assert not any(reason.startswith("resting") for reason in reasons(stage))


async def test_a_machine_says_that_its_disk_filled_while_a_request_is_held_and_when_it_has_room(
    start: Start,
) -> None:
    stage = await start(FakeBackend())
    await until(lambda: stage.control.asked)
    stage.ground.lacking = "its disk is full"
    await until(lambda: len(stage.control.asked) == 2)
    stage.ground.lacking = None
    await until(lambda: len(stage.control.asked) == 3)
    hold = await granted(stage)
    await stage.end()

    said = [(one.slots, one.reason, one.request_id) for one in stage.control.asked[:3]]
    [first] = {request_id for _, _, request_id in said}
    assert said == [(2, None, first), (0, "its disk is full", first), (2, None, first)]
    assert hold.envelopes


async def test_a_runner_whose_folder_is_taken_away_gives_back_what_it_has_and_ends(
    start: Start,
) -> None:
    stage = await start(FakeBackend())
    stage.backend.gate = asyncio.Event()
    hold = await granted(stage)
    await until(lambda: stage.backend.begun)
    stage.ground.gone = True

    with pytest.raises(Unavailable, match="the folder is gone"):
        await stage.running

    assert "release draining" in hold.story
    assert stage.backend.stopped == ["b_one.1"]
    assert len(stage.control.ended) == 1


async def test_a_folder_that_cannot_be_made_gives_the_build_back_and_lets_the_machine_rest(
    start: Start, tmp_path: Path
) -> None:
    stage = await start(FakeBackend())
    await until(lambda: stage.control.asked)
    (tmp_path / "work").rmdir()
    (tmp_path / "work").touch()
    hold = await granted(stage)
    await until(lambda: "resting after a broken build" in reasons(stage))
    await stage.end()

    [given_back, closed] = hold.story
    assert given_back.startswith("release draining its folder cannot be used: ")
    assert closed == "close"
    assert stage.backend.begun == []


async def test_a_folder_that_goes_away_under_a_build_gives_it_back(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LOOK_SECONDS", 0.001)
    stage = await start(FakeBackend())
    hold = stage.control.hold(grant())
    hold.fetching = asyncio.Event()
    await granted(stage)
    await until(lambda: "enter fetching" in hold.story)
    (tmp_path / "work" / "b_one.1").rmdir()
    await until(lambda: "resting after a broken build" in reasons(stage))
    await stage.end()

    assert any(
        call.startswith("release unhealthy ") and "No such file" in call for call in hold.story
    )
    assert hold.envelopes == []
    assert stage.backend.stopped == ["b_one.1"]


async def test_a_build_that_cannot_be_cleared_away_is_given_back(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unwritable(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(FakeBackend, "stop", unwritable)
    stage = await start(FakeBackend())
    hold = await granted(stage)
    await until(lambda: "resting after a broken build" in reasons(stage))
    await stage.end()

    assert "release unhealthy [Errno 30] Read-only file system" in hold.story
    assert hold.envelopes == []


async def test_a_program_that_goes_away_while_a_request_is_held_has_the_machine_looked_at_first(
    start: Start,
) -> None:
    stage = await start(FakeBackend())
    await until(lambda: stage.control.asked)
    stage.backend.slots, stage.backend.lacking = 0, "buildah is not installed"
    await until(lambda: stage.control.asked[-1].slots == 0)
    shown = stage.control.able[-1]
    stage.backend.slots, stage.backend.lacking = 2, "buildah has changed"
    await until(lambda: stage.control.asked[-1].slots == 2)
    await stage.end()

    assert [able.slots for able in stage.control.able] == [2, 0, 2]
    assert shown.limits == {"backend": "fake builds nothing"}
    assert reasons(stage) == {"fake builds nothing"}


async def test_a_build_for_which_the_builder_has_gone_meanwhile_is_given_back_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LOOK_SECONDS", 600)  # it looks only when it is given something
    stage = await start(FakeBackend())
    await until(lambda: stage.control.asked)
    stage.backend.lacking = "buildah is not installed"
    hold = await granted(stage)
    await until(lambda: "close" in hold.story)
    await stage.end()

    assert hold.story == ["release draining buildah is not installed", "close"]
    assert stage.backend.begun == []
    assert reasons(stage) <= {"buildah is not installed"}  # it does not rest: nothing broke


async def test_a_machine_on_which_a_build_broke_is_looked_at_while_another_build_goes_on(
    start: Start,
) -> None:
    backend = FakeBackend(gate=asyncio.Event())
    stage = await start(backend)
    await granted(stage)
    await until(lambda: backend.begun)
    backend.isolation, backend.lacking = "none", "a build broke here"
    await until(lambda: len(stage.control.able) == 2)
    assert backend.gate is not None
    backend.gate.set()
    await stage.end()

    assert [able.isolation for able in stage.control.able] == ["full", "none"]
    assert stage.backend.stopped == ["b_one.1"]
