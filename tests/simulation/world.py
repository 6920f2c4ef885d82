"""A router, its runners and submitters, and the network between them, on one virtual clock.

One seed decides everything: delays, losses, duplicates, crashes, freezes, clock rates. There is no
thread, no socket and no real time, so a failing seed fails again on any machine.
"""

import hashlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from random import Random
from typing import Final, TypeVar

from pierhead.protocol.lease import Acquire, Acquired, Grant, ReleaseReason
from pierhead.protocol.plan import ContextRef, IfNobody, Plan, Submit
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.token import token_hash
from pierhead.router.ports.machines import StoredRunner
from pierhead.router.ports.projects import StoredProject

from .chance import EPOCH, Faults, Scheduler
from .checkers import Machine, Truth
from .router import Numbers, Router, finish, secrets_of
from .runner import Runner
from .store import MemoryLogs, MemoryStore

T = TypeVar("T")
CHAOS_SECONDS: Final = 180.0
CALM_SECONDS: Final = 900.0
BUILDS: Final = 5
PLATFORMS: Final = ("linux/amd64", "linux/arm64")
CONTEXT: Final = ContextRef(digest="sha256:" + "0" * 64, size_bytes=1, unpacked_bytes=1, files=1)


class RouterDied(Exception):
    """The router's process ended in the middle of a step."""


class World:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.faults = Faults.draw(self.chance)
        self.clock = Scheduler()
        self.trace = hashlib.sha256()
        machines = self._draw_machines()
        self.truth = Truth(self.clock, machines, untrusted={"strangers"})
        self.store = MemoryStore(self.truth.committed, self._maybe_die)
        self.logs, self.numbers = MemoryLogs(), Numbers()
        self.router: Router | None = None
        self._register(machines)
        self._start_router()
        self.runners = [
            Runner(
                self,
                machine,
                slots=1 if machine.here else self.chance.choice([1, 1, 2]),
                rate=self.chance.uniform(*self.faults.clock_rates),
            )
            for machine in machines.values()
        ]
        for runner in self.runners:
            # One that is registered and does not come for a long time.
            late = self.chance.random() < 0.2 and not runner.machine.here
            self.clock.after(100 if late else 0, runner.start)
        if len(machines) > 2 and self.chance.random() < 0.3:
            self.clock.after(self.chance.uniform(20, 150), self.runners[0].leave)
        self._sweep()
        for number in range(BUILDS):
            request = self._draw_request(number)
            self.clock.after(self.chance.uniform(0, 90), Submitter(self, request).submit)

    def _draw_machines(self) -> dict[str, Machine]:
        names = [f"r{number}" for number in range(self.chance.choice([0, 1, 2, 3]))]
        machines = [
            Machine(
                name=name,
                here=False,
                platform=self.chance.choice(["linux/amd64", "linux/amd64", "linux/arm64"]),
                isolated=self.chance.random() < 0.8,
            )
            for name in names
        ]
        here = Machine(name="here", here=True, platform="linux/amd64", isolated=True)
        return {machine.name: machine for machine in [*machines, here]}

    def _register(self, machines: dict[str, Machine]) -> None:
        ledger = self.store.ledger
        for project in ("web", "strangers"):
            trusted = project != "strangers"
            ledger.save_project(StoredProject(name=project, trusted=trusted, created_at=EPOCH))
            ledger.save_context(project, CONTEXT, EPOCH)
        for name, machine in machines.items():
            ledger.save_runner(
                StoredRunner(
                    name=name,
                    credential_hash=token_hash(name),
                    here=machine.here,
                    created_at=EPOCH,
                )
            )

    def _draw_request(self, number: int) -> Submit:
        choices: list[IfNobody] = ["here", "here", "here", "wait", "fail"]
        if_nobody = self.chance.choice(choices)
        # What waits for ever has to fit a runner that comes some time.
        others = [machine for machine in self.truth.machines.values() if not machine.here]
        platform = self.chance.choice([None, None, "linux/amd64", "linux/arm64"])
        project = self.chance.choice(["web", "web", "strangers"])
        if if_nobody == "wait":
            platform, project = None, "web"
            if_nobody = if_nobody if others else "here"
        there = {machine.platform for machine in self.truth.machines.values()}
        often = 0.5 if there == {*PLATFORMS} else 0.1
        both = if_nobody != "wait" and self.chance.random() < often
        return Submit(
            project=project,
            plan=Plan(platform=None if both else platform),
            platforms=PLATFORMS if both else (),
            context=CONTEXT,
            key=f"key-{number}",
            tags=(f"v{number}",),
            if_nobody=if_nobody,
            max_queue_wait_seconds=self.chance.choice([0, 20, 120]),
            supersedes=self.chance.choice([None, None, "main"]),
            # What waits for ever may meet only runners that get no secrets.
            secrets=secrets_of(f"key-{number}") if number % 4 == 0 and if_nobody != "wait" else {},
        )

    # The router's process.

    def _start_router(self) -> None:
        self.router = Router(self.store, self.logs, self.numbers, self.clock)
        try:
            finish(self.router.sweep.recover())
        except RouterDied:
            self._bury()

    def _maybe_die(self) -> None:
        if self.chance.random() < self.faults.router_crash:
            raise RouterDied

    def _bury(self) -> None:
        self.router = None
        self.clock.after(self.faults.router_down_seconds, self._start_router)

    def _sweep(self) -> None:
        if self.router is not None:
            try:
                finish(self.router.sweep.once())
            except RouterDied:
                self._bury()
        self.clock.after(1, self._sweep)

    # The network: a message may be lost, doubled, late, and overtaken.

    def _delay(self) -> float:
        late = self.chance.uniform(1, 30) if self.chance.random() < self.faults.straggle else 0
        return late + self.chance.expovariate(1 / self.faults.delay_seconds)

    def _carry(self, action: Callable[[], object]) -> None:
        copies = 0 if self.chance.random() < self.faults.loss else 1
        copies += self.chance.random() < self.faults.duplicate
        for _ in range(copies):
            self.clock.after(self._delay(), action)

    def call(
        self,
        ask: Callable[[Router], T],
        answered: Callable[[T | Refused], None],
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """Send a request; the answer comes back late, twice, or never."""

        def arrive() -> None:
            if self.router is None or is_cut_off():
                return
            answer: T | Refused
            try:
                answer = ask(self.router)
            except Refused as refused:
                answer = refused
            except RouterDied:
                self._bury()
                return
            self._note(answer)
            self._carry(lambda: None if is_cut_off() else answered(answer))

        self._carry(arrive)

    def acquire(self, router: Router, name: str, request: Acquire) -> Acquired:
        let_in = True
        try:
            return router.acquire(name, request)
        except Refused:
            let_in = False
            raise
        finally:
            if let_in:
                self.truth.asked(name, request.session_id, request.turn)

    def release(self, router: Router, grant: Grant, reason: ReleaseReason) -> None:
        build_id, fence = grant.build_id, grant.fence
        before = self.store.ledger.builds_[build_id].build.lease
        if reason == "unhealthy" and before is not None and before.fence == fence:
            self.truth.breaking[build_id] = before.runner
        try:
            router.release(build_id, fence, grant.token, reason)
        finally:
            self.truth.breaking.pop(build_id, None)
            after = self.store.ledger.builds_[build_id].build.lease
            if before is not None and before.fence == fence and after is None:
                self.truth.released[build_id] += 1
                if reason == "unhealthy":
                    self.truth.broken[build_id].append(before.runner)

    def _note(self, answer: object) -> None:
        self.trace.update(f"{self.clock.time} {answer!r}\n".encode())

    # The history.

    def run(self) -> None:
        self.clock.run_until(EPOCH + timedelta(seconds=CHAOS_SECONDS))
        self.faults = Faults()  # once the faults stop, everything has to end
        end = EPOCH + timedelta(seconds=CHAOS_SECONDS + CALM_SECONDS)
        self.clock.run_until(end, self._settled)
        self.truth.at_the_end(self.store.ledger, self.logs)

    def _settled(self) -> bool:
        builds = [b for b in self.store.ledger.builds_.values() if b.parent is None]
        ended = len(builds) == BUILDS and all(b.build.finished_at for b in builds)
        return ended and not any(run.running for run in self.truth.executions)

    def digest(self) -> str:
        return self.trace.hexdigest()


class Submitter:
    """Somebody who wants one build, asks until answered, and may change their mind."""

    def __init__(self, world: World, request: Submit) -> None:
        self.world, self.request = world, request
        self.build_id: str | None = None
        self.cancels = world.chance.random() < 0.25
        # Somebody may mean one platform; then it is all of them that end.
        self.part = "-1" if request.platforms and world.chance.random() < 0.3 else ""

    def submit(self) -> None:
        if self.build_id is None:
            self.world.call(lambda router: router.submit(self.request), self.submitted)
            self.world.clock.after(3, self.submit)

    def submitted(self, answer: str | Refused) -> None:
        assert isinstance(answer, str), answer
        assert self.request.key is not None
        self.world.truth.submitted(self.request.key, answer)
        if self.build_id is None and self.cancels:
            self.world.clock.after(self.world.chance.uniform(0, 60), self.cancel)
        self.build_id = answer

    def cancel(self) -> None:
        assert self.build_id is not None
        build_id = self.build_id + self.part
        if self.cancels:
            self.world.call(lambda router: router.cancel(build_id), self.cancelled)
            self.world.clock.after(3, self.cancel)

    def cancelled(self, answer: str | Refused) -> None:
        self.cancels = False
        if not isinstance(answer, Refused) and self.build_id is not None:
            build_id = self.build_id + self.part
            self.world.truth.cancel_answered(build_id, self.world.store.ledger)


def first_failure(seeds: Iterable[int]) -> str | None:
    """Run seeds until one fails, and say which, when, why, and how to see it again."""
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # a rule may break in any way
            again = f"pytest 'tests/simulation/test_world.py' -k '[{seed}]'"
            return (
                f"seed {seed} after {world.clock.time - EPOCH}: {type(error).__name__}: {error}\n"
                f"{world.faults}\nagain: {again}"
            )
    return None
