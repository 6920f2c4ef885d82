"""The runner's loop: take builds, carry them through, give back what cannot be finished.

It asks for work with a list of what it really holds, and repeats a request until it is answered,
so a lost answer loses nothing. Every build is a task of its own and ends in exactly one of three
ways: its result was taken, it was given back, or it was lost to another attempt.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from pierhead.protocol.errors import PierheadError, ProtocolMismatch, Unavailable
from pierhead.protocol.lease import Acquire, Acquired, Grant, Held
from pierhead.protocol.runner import Capabilities
from pierhead.runner.job import Job
from pierhead.runner.ports import Backend, Control, Ground, Keeper, Workspace
from pierhead.runner.removal import remove_tree

BACKOFF_SECONDS: Final = 0.25
BACKOFF_MAX_SECONDS: Final = 16.0
# While one side waits to be upgraded. A runner that ended instead would have to be started by hand.
MISMATCH_SECONDS: Final = 60.0
# After builds that broke on the runner: longer for each one more, so that a sick machine cannot eat
# the queue, and one build that breaks machines cannot stop it.
QUARANTINE_SECONDS: Final = 10.0
QUARANTINE_MAX_SECONDS: Final = 3600.0
# How long a machine that cannot build, or not isolate, is taken for one; then twice as long.
LOOK_AGAIN_SECONDS: Final = 60.0
LOOK_AGAIN_MAX_SECONDS: Final = 3600.0
GOODBYE_SECONDS: Final = 3.0
# While a request is held: what the router was told of this machine may not be true any more.
LOOK_SECONDS: Final = 1.0
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What builds on this runner may use."""

    memory_bytes: int | None = None
    cpu_weight: int | None = None


class Engine:
    """One process of a runner at work."""

    def __init__(
        self,
        control: Control,
        backend: Backend,
        keeper: Keeper,
        *,
        ground: Ground,
        work: Path,
        limits: Limits,
        open_workspace: Callable[[Path], Workspace],
        new_id: Callable[[], str],
        jitter: Callable[[float], float],
    ) -> None:
        self._control = control
        self._backend = backend
        self._keeper = keeper
        self._ground = ground
        self._work = work
        self._limits = limits
        self._open_workspace = open_workspace
        self._new_id = new_id
        self._jitter = jitter
        self._process = new_id()
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, Grant] = {}  # for an older attempt of the same build to be gone
        self._draining = False
        self._changed = asyncio.Event()
        self._request_id: str | None = None  # of a request that was not answered yet
        self._asked = 0  # requests, not counting repeats
        self._broken: set[str] = set()  # builds, since the last one that went well
        self._rest_until = 0.0
        self._look_at = self._look_wait = 0.0

    async def run(self) -> None:
        """Work until drained.

        Raises:
            Refused: the credential is not good any more, or another process took over.
            Unavailable: its folder is not its own any more.
        """
        await self._backend.sweep()
        await asyncio.to_thread(remove_tree, self._work)
        self._work.mkdir(parents=True, exist_ok=True)
        capabilities = await self._backend.probe()
        self._look_wait = LOOK_AGAIN_SECONDS
        self._look_at = asyncio.get_running_loop().time() + self._look_wait
        session = await self._begin(capabilities)
        if session is None:
            return
        try:
            while not (self._draining and not self._tasks):
                capabilities = await self._look_again(capabilities)
                await self._turn(session, capabilities)
        finally:
            await self._abort_all("the runner stops")
            await self._say_goodbye(session)

    def drain(self) -> None:
        """Take no more builds; end when those under way are done."""
        self._draining = True
        self._changed.set()

    def abort(self) -> None:
        """Give all builds back now, and take no more."""
        self.drain()
        self._waiting.clear()  # what is not held is given to somebody else
        for job in self._jobs.values():
            job.stop("draining")

    async def _begin(self, capabilities: Capabilities) -> str | None:
        """Open the session, waiting for a router that is away; none: told to stop meanwhile."""
        wait = BACKOFF_SECONDS
        while not self._draining:
            try:
                session = await self._control.open_session(self._process, capabilities)
            except (Unavailable, ProtocolMismatch) as error:
                log.warning("session.unavailable", detail=str(error), hint=error.problem.hint)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._jitter(_patience(error, wait))):
                        await self._changed.wait()
                wait = min(wait * 2, BACKOFF_MAX_SECONDS)
                continue
            log.info("session.open", session=session.session_id)
            return session.session_id
        return None

    async def _look_again(self, known: Capabilities) -> Capabilities:
        """A machine that lacked something may be mended, and one that did not may lack it now."""
        now = asyncio.get_running_loop().time()
        able = known.slots > 0 and known.isolation != "none"
        outdated = self._backend.lack() is not None
        if self._draining or (not outdated and (able or self._tasks or now < self._look_at)):
            return known
        self._look_wait = LOOK_AGAIN_SECONDS if outdated else 2 * self._look_wait
        self._look_wait = min(self._look_wait, LOOK_AGAIN_MAX_SECONDS)
        self._look_at = now + self._look_wait
        found = await self._backend.probe()
        if _shown(found) != _shown(known):
            await self._begin(found)  # of the same process: it is the same session
        return found

    async def _say_goodbye(self, session: str) -> None:
        """Let nobody wait for this runner. A router that is away finds out by itself."""
        with contextlib.suppress(PierheadError, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._control.release_session(session)

    async def _turn(self, session: str, capabilities: Capabilities) -> None:
        """Ask until there is an answer, or something changed here.

        After a change the same request is sent again with what is true now. The router ends the
        older one, and what it had granted for it comes with the answer to the repeat.
        """
        # Before looking: what changes from here on ends the request that is about to be sent.
        self._changed.clear()
        self._collect()
        if self._draining and not self._tasks:
            return
        lack, rests = self._lack(), self._rests()
        slots, reason = self._free_slots(capabilities, lack)
        if self._request_id is None:
            self._request_id, self._asked = self._new_id(), self._asked + 1
        grants = [job.grant for job in self._jobs.values()] + list(self._waiting.values())
        held = (Held(build_id=grant.build_id, fence=grant.fence) for grant in grants)
        request = Acquire(
            session_id=session,
            request_id=self._request_id,
            turn=self._asked,
            slots=slots,
            held=tuple(held),
            reason=reason,
        )
        asking = asyncio.ensure_future(self._acquire(request))
        changing = asyncio.ensure_future(self._changed.wait())
        looking = asyncio.ensure_future(self._until_able(lacks=lack is not None, rests=rests))
        await asyncio.wait({asking, changing, looking}, return_when=asyncio.FIRST_COMPLETED)
        changing.cancel()
        looking.cancel()
        self._collect()
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})
        if looking.done() and not looking.cancelled():
            looking.result()  # raises when the folder is not ours any more
        if asking.cancelled():
            return
        answer = asking.result()
        self._request_id = None
        self._act(answer)
        if answer.retry_after_ms:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), answer.retry_after_ms / 1000)

    async def _until_able(self, *, lacks: bool, rests: bool) -> None:
        """Wait until builds can be taken and could not, or the other way round.

        Neither a disk nor the time tells anybody, nor does whoever removes a program.
        """
        while (self._lack() is not None, self._rests()) == (lacks, rests):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)

    def _lack(self) -> str | None:
        """Say what keeps builds away that nobody tells a runner."""
        return self._ground.lack() or self._backend.lack()

    def _rests(self) -> bool:
        return asyncio.get_running_loop().time() < self._rest_until

    async def _acquire(self, request: Acquire) -> Acquired:
        wait = BACKOFF_SECONDS
        while True:
            try:
                return await self._control.acquire(request)
            except (Unavailable, ProtocolMismatch) as error:
                log.warning("acquire.unavailable", detail=str(error), hint=error.problem.hint)
                await asyncio.sleep(self._jitter(_patience(error, wait)))
                wait = min(wait * 2, BACKOFF_MAX_SECONDS)

    def _act(self, answer: Acquired) -> None:
        for held in answer.drop:
            job = self._jobs.get(held.build_id)
            if job is not None and job.grant.fence == held.fence:
                job.stop("lost")
            waiting = self._waiting.get(held.build_id)
            if waiting is not None and waiting.fence == held.fence:
                del self._waiting[held.build_id]
        for grant in answer.grants:
            job = self._jobs.get(grant.build_id)
            if job is None:
                self._start(grant)
            elif job.grant.fence < grant.fence:
                # The build came back while its older attempt is still being cleared away.
                job.stop("lost")
                self._waiting[grant.build_id] = grant

    def _start(self, grant: Grant) -> None:
        used = {job.slot for job in self._jobs.values()}
        slot = next(number for number in range(len(used) + 1) if number not in used)
        job = Job(
            grant,
            self._control.attempt(grant),
            self._backend,
            self._keeper,
            slot=slot,
            open_workspace=partial(
                self._open_workspace, self._work / f"{grant.build_id}.{grant.fence}"
            ),
            memory_bytes=self._limits.memory_bytes,
            cpu_weight=self._limits.cpu_weight,
            lack=self._backend.lack(),
        )
        self._jobs[grant.build_id] = job
        task = asyncio.create_task(job.run())
        task.add_done_callback(lambda _: self._changed.set())
        self._tasks[grant.build_id] = task
        log.info("build.begin", build=grant.build_id, fence=grant.fence)

    def _collect(self) -> None:
        """Take away jobs that have ended."""
        for build_id, task in list(self._tasks.items()):
            if not task.done():
                continue
            job = self._jobs.pop(build_id)
            del self._tasks[build_id]
            error = task.exception()
            if error is not None:
                log.error("build.broken", build=build_id, exc_info=error)
            log.info("build.end", build=build_id, how=job.ended)
            self._note_health(build_id, broken=error is not None or job.ended == "broken")
            grant = self._waiting.pop(build_id, None)
            if grant is not None:
                self._start(grant)

    def _note_health(self, build_id: str, *, broken: bool) -> None:
        if not broken:
            self._broken.clear()
            return
        # The same build again says nothing new of the machine: it may well be the build.
        self._broken.add(build_id)
        rest = min(QUARANTINE_SECONDS * 2 ** (len(self._broken) - 1), QUARANTINE_MAX_SECONDS)
        self._rest_until = asyncio.get_running_loop().time() + rest

    def _free_slots(self, capabilities: Capabilities, lack: str | None) -> tuple[int, str | None]:
        """Return how many builds may come, and why none may."""
        if self._draining:
            return 0, "draining"
        if self._rests():
            return 0, resting_after(len(self._broken))
        if capabilities.slots == 0:
            return 0, capabilities.limits.get("backend")
        if lack is not None:
            return 0, lack[:1000]
        return max(0, capabilities.slots - len(self._jobs)), None

    async def _abort_all(self, why: str) -> None:
        self._waiting.clear()
        for job in self._jobs.values():
            job.stop("draining")
        if self._tasks:
            log.info("engine.stopping", builds=len(self._tasks), why=why)
            await asyncio.wait(self._tasks.values())
        self._collect()


def _shown(able: Capabilities) -> tuple[int, str, dict[str, str]]:
    """Return what the router has to know anew when it changes."""
    return able.slots, able.isolation, able.limits


def resting_after(builds: int) -> str:
    """Return why a runner takes no build for a while, after so many it could not end."""
    return f"resting after {builds} broken builds" if builds > 1 else "resting after a broken build"


def _patience(error: PierheadError, wait: float) -> float:
    """Return how long to wait before asking again: an upgrade takes longer than a restart."""
    return MISMATCH_SECONDS if isinstance(error, ProtocolMismatch) else wait
