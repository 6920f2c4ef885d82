"""What every backend keeps, asked of buildah and of the fake that the engine is tested on.

To add a backend: a yard for it below, and all of this has to hold.
"""

import asyncio
import json
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.protocol.plan import Plan
from pierhead.protocol.result import CacheUse, Failure
from pierhead.runner.adapters import process
from pierhead.runner.adapters.buildah import BuildahBackend
from pierhead.runner.ports import Backend, Broken, BuilderLostError, BuildOrder, Built
from pierhead.runner.testing import FakeBackend
from tests.integration.backend.conftest import Attempt, Bench
from tests.sight import all_below, is_gone, words_in

USUAL = Plan()
SECRET = b"correct horse battery"
FAILED = Failure(cause="command", message="exit code 7", exit_code=7)


class Yard(ABC):
    """Builds of each kind on one backend."""

    backend: Backend

    @abstractmethod
    def good(self, *, slot: int = 0, project: str = "web", preview: bool = False) -> Attempt:
        """Return a build that writes `hello` into its log and succeeds."""

    @abstractmethod
    def telling(self, secrets: Mapping[str, bytes]) -> Attempt:
        """Return a build that writes the secret `npm` into its log."""

    @abstractmethod
    def bad(self) -> Attempt:
        """Return a build whose step ends with exit code 7."""

    @abstractmethod
    def endless(self, *, slot: int = 0, plan: Plan = USUAL) -> Attempt:
        """Return a build that writes `hello`, and never ends by itself."""

    @abstractmethod
    def lose(self, attempt: Attempt) -> None:
        """Kill the builder of a build that goes on."""

    @abstractmethod
    def goes_on(self, attempt: Attempt) -> bool:
        """Say whether anything of a build runs, not by the backend's word."""

    @abstractmethod
    def next_life(self) -> Backend:
        """Return the backend of the runner that is started after this one was killed."""

    @abstractmethod
    def unable(self, monkeypatch: pytest.MonkeyPatch) -> Backend:
        """Return a backend that can build nothing."""


class RealYard(Yard):
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.backend = bench.backend

    def good(self, *, slot: int = 0, project: str = "web", preview: bool = False) -> Attempt:
        return self._bench.attempt("RUN echo hello\n", slot=slot, project=project, preview=preview)

    def telling(self, secrets: Mapping[str, bytes]) -> Attempt:
        steps = "RUN --mount=type=secret,id=npm cat /run/secrets/npm; echo; echo hello\n"
        return self._bench.attempt(steps, plan=Plan(secrets=tuple(secrets)), secrets=secrets)

    def bad(self) -> Attempt:
        return self._bench.attempt("RUN exit 7\n")

    def endless(self, *, slot: int = 0, plan: Plan = USUAL) -> Attempt:
        return self._bench.attempt("RUN echo hello; sleep 619\n", slot=slot, plan=plan)

    def lose(self, attempt: Attempt) -> None:
        os.killpg(attempt.groups[-1].pid, signal.SIGKILL)

    def goes_on(self, attempt: Attempt) -> bool:
        inside = [
            pid
            for group in attempt.groups
            for folder in group.cgroups
            for procs in all_below(Path(folder))
            if procs.name == "cgroup.procs"
            for pid in words_in(procs).split()
        ]
        return bool(inside) or not all(is_gone(group.pid) for group in attempt.groups)

    def next_life(self) -> Backend:
        return BuildahBackend(self._bench.folder / "state", slots=2, memory_bytes=None)

    def unable(self, monkeypatch: pytest.MonkeyPatch) -> Backend:
        monkeypatch.setitem(process.ENVIRONMENT, "PATH", str(self._bench.folder))
        (self._bench.folder / "other").mkdir()
        return BuildahBackend(self._bench.folder / "other", slots=2, memory_bytes=None)


class FakeAttempt(Attempt):
    """A build for which the fake is told at its begin what to do."""

    backend: FakeBackend
    output_wanted: bytes = b"STEP 1/1\nhello\n"
    outcome: Broken | None = None
    gate: asyncio.Event | None = None

    async def run(self) -> Built | Broken:
        self.backend.output = self.output_wanted
        self.backend.outcome, self.backend.gate = self.outcome, self.gate
        return await super().run()


class FakeYard(Yard):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.backend: FakeBackend = FakeBackend()

    def _attempt(
        self,
        slot: int = 0,
        project: str = "web",
        preview: bool = False,
        secrets: Mapping[str, bytes] | None = None,
        plan: Plan = USUAL,
    ) -> FakeAttempt:
        self._count += 1
        work = self._folder / f"b_{self._count}.1"
        (work / "context").mkdir(parents=True)
        (work / "context" / "Dockerfile").write_text("FROM scratch\n")
        order = BuildOrder(
            name=work.name,
            slot=slot,
            project=project,
            preview=preview,
            context=work / "context",
            work=work,
            plan=plan,
            secrets=secrets or {},
        )
        return FakeAttempt(self.backend, order)

    def good(self, *, slot: int = 0, project: str = "web", preview: bool = False) -> Attempt:
        return self._attempt(slot, project, preview)

    def telling(self, secrets: Mapping[str, bytes]) -> Attempt:
        attempt = self._attempt(secrets=secrets)
        attempt.output_wanted = secrets["npm"] + b"\nhello\n"
        return attempt

    def bad(self) -> Attempt:
        attempt = self._attempt()
        attempt.outcome = Broken(failure=FAILED, cache=CacheUse(), peak_memory_bytes=None)
        return attempt

    def endless(self, *, slot: int = 0, plan: Plan = USUAL) -> Attempt:
        attempt = self._attempt(slot, plan=plan)
        attempt.gate = asyncio.Event()
        return attempt

    def lose(self, attempt: Attempt) -> None:
        assert isinstance(attempt, FakeAttempt)
        assert attempt.gate is not None
        self.backend.outcome = BuilderLostError("killed")
        attempt.gate.set()

    def goes_on(self, attempt: Attempt) -> bool:
        return attempt.order.name in self.backend.running

    def next_life(self) -> Backend:
        return self.backend  # its memory is all that outlives it

    def unable(self, monkeypatch: pytest.MonkeyPatch) -> Backend:
        return FakeBackend(slots=0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, isolates: Path) -> Bench:
    """One for all tests: what is the same in all builds is built once."""
    return Bench(tmp_path_factory.mktemp("bench"), isolates)


@pytest.fixture(params=["fake", "buildah"])
async def yard(request: pytest.FixtureRequest, tmp_path: Path, bench: Bench) -> AsyncIterator[Yard]:
    yield FakeYard(tmp_path) if request.param == "fake" else RealYard(bench)
    while bench.attempts:
        await bench.attempts.pop().stop()


async def stopped(attempt: Attempt) -> None:
    """Stop a build, and look whether it was true that nothing is left."""
    proof = await attempt.stop()
    assert proof.clean, proof
    assert not attempt.order.work.exists()


async def cancelled(attempt: Attempt) -> None:
    """Begin a build, and cancel it when it is under way."""
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nhello\n")
    building.cancel()
    await asyncio.wait({building})
    assert building.cancelled()


async def test_what_a_machine_can_do_is_said_the_same_each_time(yard: Yard) -> None:
    first, second = await yard.backend.probe(), await yard.backend.probe()

    assert first.slots == second.slots > 0
    assert first.isolation == second.isolation
    assert "backend" not in first.limits
    assert first.platforms == second.platforms
    assert ("none" in first.networks) is (first.isolation == "full")


async def test_a_machine_that_can_build_nothing_has_no_slots_and_says_why(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await yard.unable(monkeypatch).probe()

    assert found.slots == 0
    assert found.limits["backend"]


async def test_a_build_gives_an_image_in_its_own_folder_and_all_of_its_output(yard: Yard) -> None:
    attempt = yard.good()

    found = await attempt.run()

    assert isinstance(found, Built), attempt.output.decode()
    assert b"hello\n" in attempt.output
    assert found.layout.is_relative_to(attempt.order.work)
    image = found.image.platform
    assert image.platform in (await yard.backend.probe()).platforms
    index = json.loads((found.layout / "index.json").read_bytes())
    assert [one["digest"] for one in index["manifests"]] == [image.manifest_digest]
    assert digest_of(found.image.manifest) == image.manifest_digest
    for digest in (image.manifest_digest, image.config_digest, *image.layers):
        blob = found.layout / "blobs" / digest.replace(":", "/", 1)
        assert digest_of(blob.read_bytes()) == digest
    told = bytes(attempt.output)
    await stopped(attempt)
    assert attempt.output == told  # and nothing after the answer


async def test_whoever_watches_hears_of_the_processes_before_the_first_output(yard: Yard) -> None:
    attempt = yard.endless()
    known: list[int] = []
    take = attempt._take

    def taken(data: bytes) -> None:
        known.append(len(attempt.groups))
        take(data)

    attempt._take = taken  # type: ignore[method-assign]

    await cancelled(attempt)

    assert min(known) >= 1
    assert {group.name for group in attempt.groups} == {attempt.order.name}
    assert all(group.pid > 1 for group in attempt.groups)
    await stopped(attempt)


async def test_a_step_that_fails_is_an_answer_and_no_error(yard: Yard) -> None:
    attempt = yard.bad()

    found = await attempt.run()

    assert isinstance(found, Broken)
    assert (found.failure.cause, found.failure.exit_code) == ("command", 7)
    assert not yard.goes_on(attempt)
    await stopped(attempt)


async def test_a_build_that_takes_longer_than_it_may_is_ended_and_says_so(yard: Yard) -> None:
    attempt = yard.endless(plan=Plan(timeout_seconds=1))

    found = await attempt.run()

    assert isinstance(found, Broken)
    assert found.failure.cause == "time"
    await stopped(attempt)
    assert not yard.goes_on(attempt)


async def test_a_secret_is_not_in_the_log(yard: Yard) -> None:
    attempt = yard.telling({"npm": SECRET})

    found = await attempt.run()

    assert isinstance(found, Built), attempt.output.decode()
    assert b"***" in attempt.output
    assert SECRET not in attempt.output
    await stopped(attempt)


async def test_a_build_that_is_cancelled_ends_at_once_and_leaves_nothing(yard: Yard) -> None:
    attempt = yard.endless()

    await cancelled(attempt)
    await stopped(attempt)

    assert not yard.goes_on(attempt)


async def test_a_builder_that_was_killed_says_nothing_about_the_build(yard: Yard) -> None:
    attempt = yard.endless()
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nhello\n")

    yard.lose(attempt)

    with pytest.raises(BuilderLostError):
        await building
    await stopped(attempt)
    assert not yard.goes_on(attempt)


async def test_what_never_began_and_what_was_stopped_before_is_stopped_as_well(yard: Yard) -> None:
    attempt = yard.good()

    for _ in range(2):
        await stopped(attempt)


async def test_a_stop_that_was_cancelled_can_be_done_again(yard: Yard) -> None:
    attempt = yard.endless()
    await cancelled(attempt)
    stopping = asyncio.create_task(attempt.stop())
    await asyncio.sleep(0.01)
    stopping.cancel()
    await asyncio.wait({stopping})

    await stopped(attempt)

    assert not yard.goes_on(attempt)


async def test_a_stop_leaves_another_build_alone_and_its_slot_free(yard: Yard) -> None:
    first, other = yard.endless(slot=0), yard.endless(slot=1)
    building = asyncio.create_task(other.run())
    await other.until(b"\nhello\n")

    await cancelled(first)
    await stopped(first)
    following = yard.good(slot=0)
    found = await following.run()

    assert isinstance(found, Built), following.output.decode()
    assert not building.done()
    assert yard.goes_on(other)
    assert other.order.work.exists()
    building.cancel()
    await asyncio.wait({building})
    await stopped(other)
    await stopped(following)


async def test_the_next_build_of_a_project_is_lent_the_last_context_and_no_other_is(
    yard: Yard,
) -> None:
    first = yard.good(project="lent")
    (first.order.context / "folder").mkdir()
    (first.order.context / "folder" / "file").write_bytes(b"\0content")
    await stopped(first)

    for other in (
        yard.good(project="another"),
        yard.good(project="lent", preview=True),
        yard.good(project="lent", slot=1),
    ):
        await _lend(yard, other)
        assert not other.order.context.exists()
    following = yard.good(project="lent")
    await _lend(yard, following)
    assert (following.order.context / "folder" / "file").read_bytes() == b"\0content"
    again = yard.good(project="lent")
    await _lend(yard, again)
    assert not again.order.context.exists()  # it is the other one's now


async def _lend(yard: Yard, attempt: Attempt) -> None:
    """Ask for a context where none is yet."""
    for file in attempt.order.context.iterdir():
        file.unlink()
    attempt.order.context.rmdir()
    await yard.backend.lend(attempt.order)


async def test_what_a_killed_runner_left_is_swept_away_and_the_slot_can_be_used(
    yard: Yard,
) -> None:
    left = yard.endless()
    await cancelled(left)  # and not stopped

    backend = yard.next_life()
    for _ in range(2):
        proof = await backend.sweep()
        assert proof.clean, proof
    assert not yard.goes_on(left)
    following = yard.good()
    following.backend = backend
    found = await following.run()

    assert isinstance(found, Built), following.output.decode()
    await stopped(following)
