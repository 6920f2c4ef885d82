"""A runner of the simulated world: asks, works, renews, logs, reports; crashes, freezes, drains.

It keeps the runner's half of the bargain: it stops a build by itself 17 s, on its own clock, after
it sent the last sign of life that was answered, and drops what it is told to.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from pierhead.protocol.lease import (
    Acquire,
    Acquired,
    Grant,
    Held,
    LogAccepted,
    ReleaseReason,
    Renewed,
)
from pierhead.protocol.result import Envelope, Failure, Receipt
from pierhead.protocol.runner import Capabilities, Session, SessionRequest
from pierhead.router.domain.errors import Refused, SessionSuperseded

from .chance import EPOCH
from .checkers import Execution, Machine
from .router import SESSION_KEY, Image, Router

if TYPE_CHECKING:
    from .world import World

T = TypeVar("T")
SELF_FENCE_SECONDS: Final = 17.0
AGAIN_SECONDS: Final = 2.0


@dataclass(eq=False, kw_only=True)
class Job:
    """What one process knows of one build."""

    grant: Grant
    execution: Execution
    image: Image
    deadline: datetime
    seconds: float
    fails: bool
    fetched: bool = False
    reporting: bool = False
    acknowledged: int = 0  # bytes of the log
    sent: int = 0
    result: Envelope | None = None


@dataclass(eq=False)
class Runner:
    """One machine; its processes come and go."""

    world: "World"
    machine: Machine
    slots: int
    rate: float
    life: int = 0
    frozen_until: datetime | None = None
    cut_off_until: datetime = EPOCH
    session: str | None = None
    request_id: str | None = None
    asked: int = 0
    draining: bool = False
    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.machine.name

    # A process and its time.

    def start(self) -> None:
        self.life += 1
        self.session, self.request_id, self.draining = None, None, False
        self.later(self.world.chance.uniform(0, 1), self.open)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        self.world.clock.after(seconds * self.rate, self.alive(action))

    def alive(self, action: Callable[[], object]) -> Callable[[], None]:
        """Let it happen only in this life, and not before a freeze is over."""
        life = self.life

        def guarded() -> None:
            now = self.world.clock.time
            if life != self.life:
                return
            if self.frozen_until is not None and now < self.frozen_until:
                self.world.clock.after((self.frozen_until - now).total_seconds(), guarded)
                return
            action()

        return guarded

    def leave(self) -> None:
        """The machine is gone for good."""
        self.end_process(1e9)

    def end_process(self, restart_seconds: float) -> None:
        """End at once, with all that runs; a service manager starts it again."""
        for job in list(self.jobs.values()):
            self.drop(job)
        self.life += 1
        self.frozen_until = None
        self.world.clock.after(restart_seconds, self.start)

    def maybe_fail(self) -> bool:
        """Say whether this turn was the process's last."""
        chance, faults = self.world.chance, self.world.faults
        if chance.random() < faults.runner_crash:
            self.end_process(chance.uniform(0.5, 8))
            return True
        if chance.random() < faults.runner_freeze:
            seconds = chance.choice([3, 15, 40, 90])
            self.frozen_until = self.world.clock.time + timedelta(seconds=seconds)
            for job in self.jobs.values():
                job.execution.frozen = True
            self.world.clock.after(seconds, self.alive(self.thaw))
        if chance.random() < faults.runner_cut_off:
            seconds = chance.choice([5, 12, 20, 60])
            self.cut_off_until = self.world.clock.time + timedelta(seconds=seconds)
        if chance.random() < faults.runner_drain:
            self.draining = True
            for job in list(self.jobs.values()):
                self.give_back(job, "draining")
        return False

    def thaw(self) -> None:
        self.frozen_until = None
        for job in list(self.jobs.values()):
            job.execution.frozen = False
            self.fence_off(job)

    # Asking for work.

    def open(self) -> None:
        if self.session is not None:
            return
        able = Capabilities(
            platforms=(self.machine.platform,),
            backend="simulated",
            isolation="full" if self.machine.isolated else "none",
            networks=("default", "none"),
            cpus=2,
            memory_bytes=2**30,
            slots=self.slots,
        )
        request = SessionRequest(
            process=f"{self.name}.{self.life}",
            boot_id=f"boot-{self.name}",
            started_ms=self.life,
            capabilities=able,
            public_key=SESSION_KEY.public,
        )
        self.call(
            lambda router: router.open_session(self.name, request), self.alive_reply(self.opened)
        )
        self.later(AGAIN_SECONDS, self.open)

    def opened(self, answer: Session | Refused) -> None:
        if isinstance(answer, Refused):
            self.end_process(5)
        elif self.session is None:
            self.session = answer.session_id
            self.world.truth.opened(answer.session_id, f"{self.name}.{self.life}")
            self.ask()

    def ask(self) -> None:
        """Ask, with the same request until it is answered."""
        if self.maybe_fail() or self.session is None:
            return
        if self.draining and not self.jobs:
            self.end_process(3)
            return
        if self.request_id is None:
            self.asked += 1
            self.request_id = f"{self.name}.{self.life}.{self.asked}"
        held = tuple(
            Held(build_id=build_id, fence=job.grant.fence) for build_id, job in self.jobs.items()
        )
        request = Acquire(
            session_id=self.session,
            request_id=self.request_id,
            turn=self.asked,
            slots=0 if self.draining else self.slots - len(self.jobs),
            held=held,
            hold_ms=0,
        )
        sent = self.world.clock.time
        self.call(
            lambda router: self.world.acquire(router, self.name, request),
            self.alive_reply(lambda answer: self.answered(request.request_id, sent, answer)),
        )
        self.later(AGAIN_SECONDS, self.ask)

    def answered(self, request_id: str, sent: datetime, answer: Acquired | Refused) -> None:
        if request_id != self.request_id:
            return  # an older request: its answer came with a repeat
        if isinstance(answer, SessionSuperseded):
            self.end_process(5)
            return
        assert isinstance(answer, Acquired), answer
        self.request_id = None
        for held in answer.drop:
            job = self.jobs.get(held.build_id)
            if job is not None and job.grant.fence == held.fence:
                self.drop(job)
        for grant in answer.grants:
            older = self.jobs.get(grant.build_id)
            if older is not None and older.grant.fence < grant.fence:
                self.drop(older)
            if grant.build_id not in self.jobs:
                self.begin(grant, request_id, sent)

    # Working.

    def begin(self, grant: Grant, request_id: str, sent: datetime) -> None:
        assert self.session is not None
        chance = self.world.chance
        mark = f"{self.name}.{self.life}.{grant.build_id}.{request_id}"
        image = Image(mark, self.machine.platform)
        execution = Execution(
            build_id=grant.build_id,
            runner=self.name,
            session=self.session,
            request_id=request_id,
            image_digest=image.digest,
        )
        job = Job(
            grant=grant,
            execution=execution,
            image=image,
            deadline=sent,
            seconds=chance.choice([1.0, 5.0, 20.0, 60.0]),
            fails=chance.random() < 0.15,
        )
        self.jobs[grant.build_id] = job
        self.renewed(job, sent)
        self.fetch(job)
        self.beat(job)

    def fetch(self, job: Job) -> None:
        """Get the context. A grant that comes too late ends here, before anything runs."""
        if not self.has(job) or job.fetched:
            return
        grant = job.grant

        def answered(answer: Refused | None) -> None:
            if not self.has(job) or job.fetched:
                return
            if isinstance(answer, Refused):
                self.drop(job)
                return
            job.fetched = True
            job.execution.running = True
            self.world.truth.began(job.execution)
            self.write(job)
            self.later(job.seconds, lambda: self.built(job))

        self.call(
            lambda router: router.fetch(grant.build_id, grant.fence, grant.token),
            self.alive_reply(answered),
        )
        self.later(AGAIN_SECONDS, lambda: self.fetch(job))

    def has(self, job: Job) -> bool:
        return self.jobs.get(job.grant.build_id) is job

    def drop(self, job: Job) -> None:
        job.execution.running = False
        if self.has(job):
            del self.jobs[job.grant.build_id]

    def renewed(self, job: Job, sent: datetime) -> None:
        """Count the lease from when the sign of life was sent."""
        deadline = sent + timedelta(seconds=SELF_FENCE_SECONDS * self.rate)
        if deadline > job.deadline:
            job.deadline = deadline
            left = max(0.0, (deadline - self.world.clock.time).total_seconds())
            self.world.clock.after(left, self.alive(lambda: self.fence_off(job)))

    def fence_off(self, job: Job) -> None:
        """Stop what runs. A result that is ready is still offered until it is refused."""
        if self.has(job) and self.world.clock.time >= job.deadline and not job.reporting:
            self.drop(job)

    def beat(self, job: Job) -> None:
        if not self.has(job):
            return
        grant, sent = job.grant, self.world.clock.time

        def answered(answer: Renewed | Refused) -> None:
            if not self.has(job):
                return
            if isinstance(answer, Refused):
                self.drop(job)
                return
            self.renewed(job, sent)
            if answer.cancel_requested:
                self.stop_cancelled(job)

        self.call(
            lambda router: router.renew(grant.build_id, grant.fence, grant.token),
            self.alive_reply(answered),
        )
        self.later(6, lambda: self.beat(job))

    def write(self, job: Job) -> None:
        """Write a line and send what was not acknowledged yet."""
        if not self.has(job):
            return
        run, grant = job.execution, job.grant
        if job.result is None:
            run.log += f"{run.image_digest[7:15]} {len(run.log)}\n".encode()
        # Sometimes ahead of what was acknowledged: then a lost part leaves a gap behind it.
        offset = self.world.chance.choice([job.acknowledged, job.sent])
        part = run.log[offset : offset + 64]
        job.sent = offset + len(part)

        def answered(answer: LogAccepted | Refused) -> None:
            if isinstance(answer, LogAccepted):
                job.acknowledged = max(job.acknowledged, answer.next_offset)

        self.call(
            lambda router: router.append_log(
                grant.build_id, grant.fence, grant.token, offset, part
            ),
            self.alive_reply(answered),
        )
        self.later(4, lambda: self.write(job))

    def built(self, job: Job) -> None:
        """Push the image, then report; each until it is answered."""
        if not self.has(job) or job.result is not None:
            return
        log = job.execution.log
        if self.world.chance.random() < self.world.faults.runner_break:
            self.give_back(job, "unhealthy")
            return
        if job.fails:
            failure = Failure(cause="command", message="exit code 1")
            job.result = Envelope(outcome="failed", failure=failure, log_bytes=len(log))
            self.report(job)
            return
        job.result = job.image.envelope(log)
        self.push(job)

    def push(self, job: Job) -> None:
        if not self.has(job):
            return
        grant, pushed = job.grant, False

        def answered(answer: Refused | None) -> None:
            nonlocal pushed
            if isinstance(answer, Refused):
                self.drop(job)
            elif not pushed:
                pushed = True
                self.report(job)

        self.call(
            lambda router: router.push(grant.build_id, grant.fence, grant.token, job.image),
            self.alive_reply(answered),
        )
        self.later(AGAIN_SECONDS, lambda: None if pushed else self.push(job))

    def stop_cancelled(self, job: Job) -> None:
        job.execution.running = False
        job.fetched = True  # nothing begins any more
        if job.result is None or job.result.outcome != "cancelled":
            job.result = Envelope(outcome="cancelled")
            self.report(job)

    def report(self, job: Job) -> None:
        if not self.has(job):
            return
        grant, envelope = job.grant, job.result
        assert envelope is not None
        job.reporting, job.execution.running = True, False

        def ask(router: Router) -> Receipt:
            receipt = router.report(grant.build_id, grant.fence, grant.token, envelope)
            self.world.truth.receipt_given(job.execution, receipt)
            return receipt

        self.call(ask, self.alive_reply(lambda _answer: self.drop(job)))
        self.later(AGAIN_SECONDS, lambda: self.report(job) if job.result is envelope else None)

    def give_back(self, job: Job, reason: ReleaseReason) -> None:
        """Stop the build and say so, once: if that is lost, the next request says it, too."""
        grant = job.grant
        self.drop(job)
        self.call(
            lambda router: self.world.release(router, grant, reason),
            lambda _answer: None,
        )

    def call(self, ask: Callable[[Router], T], answered: Callable[[T | Refused], None]) -> None:
        self.world.call(ask, answered, self.is_cut_off)

    def is_cut_off(self) -> bool:
        return self.world.clock.time < self.cut_off_until

    def alive_reply(self, action: Callable[[T], None]) -> Callable[[T], None]:
        """Hear an answer only in the life that asked."""
        life = self.life

        def heard(answer: T) -> None:
            if life == self.life:
                self.alive(lambda: action(answer))()

        return heard
