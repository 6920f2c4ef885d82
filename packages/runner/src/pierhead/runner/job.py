"""One build on this runner, from the grant to the receipt.

Whatever ends it, a wish, a lost lease, a fault, or its own success, the same clean-up follows, and
then a look at whether anything is left. Nothing is reported before that.
"""

import asyncio
import contextlib
import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal, TypeAlias

import msgspec
import structlog

from pierhead.protocol.archive import ArchiveError
from pierhead.protocol.errors import (
    IntegrityError,
    Invalid,
    LeaseLost,
    PierheadError,
    Refused,
    Unavailable,
)
from pierhead.protocol.lease import Grant, Phase
from pierhead.protocol.result import (
    BytesMoved,
    Cause,
    Envelope,
    Failure,
    StopProof,
    Timings,
)
from pierhead.runner.domain.failure import Disk, disk_full
from pierhead.runner.ports import (
    Backend,
    Broken,
    BuilderLostError,
    BuildOrder,
    Built,
    Hold,
    Keeper,
    Pushed,
    Spool,
    Workspace,
)

Wish: TypeAlias = Literal["cancelled", "lost", "draining"]
Ended: TypeAlias = Literal["", "reported", "released", "lost", "broken"]
AGAIN_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.1
# How long the rest of a log may take after the build: the router may be restarted in between.
LOG_SECONDS: Final = 120.0
log = structlog.get_logger()


class _SecretsLost(Exception):
    """The router cannot read the build's secrets any more."""


class Job:
    """One attempt. `run` ends when nothing of it is left."""

    def __init__(
        self,
        grant: Grant,
        hold: Hold,
        backend: Backend,
        keeper: Keeper,
        *,
        slot: int,
        open_workspace: Callable[[], Workspace],
        memory_bytes: int | None,
        cpu_weight: int | None,
        lack: str | None,
    ) -> None:
        self.grant = grant
        self.slot = slot
        self.ended: Ended = ""
        self._hold = hold
        self._backend = backend
        self._keeper = keeper
        self._open_workspace = open_workspace
        self._workspace: Workspace
        self._memory_bytes = memory_bytes
        self._cpu_weight = cpu_weight
        self._lack = lack  # why nothing is begun, as it was when the build came
        self._wish: Wish | None = None
        self._wished = asyncio.Event()
        self._full: Disk | None = None  # it was, so the build was stopped
        self._gone: OSError | None = None  # the folder was, so the build was stopped
        self._why = ""  # it is given back, as far as that can be told to people
        self._phase: Phase = "fetching"
        self._took: dict[str, int] = {}
        self._began = asyncio.get_running_loop().time()

    def stop(self, wish: Wish) -> None:
        """End the build for a reason; the first one counts, but a lost lease beats them all."""
        if self._wish is None or wish == "lost":
            self._wish = wish
            self._wished.set()

    async def run(self) -> None:
        """Carry the build through, or give it back when there is no place for it."""
        self._keeper.hold(
            self.grant, lambda _reason: self.stop("lost"), lambda: self.stop("cancelled")
        )
        try:
            found = self._move_in()
            if isinstance(found, str):
                await self._give_back(found)
            else:
                await self._carry_through(found)
        finally:
            self._keeper.drop(self.grant.build_id)
            await self._hold.close()

    def _move_in(self) -> Spool | str:
        """Make the attempt's folder, and its log in it; or say why it cannot be worked in.

        The disk may have filled since the runner asked for work, or the builder gone: half a minute
        may lie in between.
        """
        try:
            self._workspace = self._open_workspace()
            lack = self._workspace.disk().lack or self._lack
            return lack or self._workspace.spool(self._hold)
        except OSError as error:
            self.ended = "broken"
            return f"its folder cannot be used: {error}"

    async def _give_back(self, why: str) -> None:
        """It did not begin here, so this is no attempt: any other runner may have it at once."""
        log.warning("build.refused", build=self.grant.build_id, detail=why)
        with contextlib.suppress(PierheadError):
            await self._hold.release("draining", why[:1000])
        self.ended = self.ended or "released"
        if self.ended != "broken":
            await self._workspace.remove()

    async def _carry_through(self, spool: Spool) -> None:
        sending = asyncio.create_task(self._send(spool))
        listening = asyncio.create_task(self._listen())
        try:
            envelope = await self._work(spool)
            proof = await self._clear_away()
            spool.close()
            await self._settle(envelope, proof, spool, sending)
        finally:
            spool.close()
            for task in (sending, listening):
                task.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)
            await self._workspace.remove()

    async def _clear_away(self) -> StopProof | None:
        """Remove what the build left; none: that cannot be done, or not be told."""
        try:
            return await self._backend.stop(self._order())
        except OSError as error:
            self._broken(error)
            return None

    async def _work(self, spool: Spool) -> Envelope | None:
        """Build until done or until a wish comes; none: a wish came, or the machine is broken."""
        building = asyncio.create_task(self._build(spool))
        others = [
            asyncio.create_task(self._wished.wait()),
            asyncio.create_task(self._until_disk_is_low()),
        ]
        await asyncio.wait({building, *others}, return_when=asyncio.FIRST_COMPLETED)
        for task in (building, *others):
            task.cancel()  # harmless where it has ended
        try:
            return await building
        except asyncio.CancelledError:
            if self._gone is not None:
                self._broken(self._gone)
            return self._disk_full() if self._full else None
        except Refused:
            self.stop("lost")
            return None
        except OSError as error:
            return self._failed_here(error)
        except Exception as error:
            self._broken(error)
            return None

    def _failed_here(self, error: OSError) -> Envelope | None:
        """Tell of a full disk as of that; whatever else there is, is a fault of the machine."""
        with contextlib.suppress(OSError):
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                self._full = self._workspace.disk()
                return self._disk_full()
        self._broken(error)
        return None

    def _broken(self, error: Exception) -> None:
        # Whatever it was: what was made for the build has to be cleared away, and the router
        # has to hear that it should give the build to somebody else.
        if isinstance(error, OSError | BuilderLostError):
            log.error("build.machine", build=self.grant.build_id, detail=str(error))
            self._why = str(error)[:1000]
        else:
            log.error("build.machine", build=self.grant.build_id, exc_info=error)
        self.ended = "broken"

    async def _until_disk_is_low(self) -> None:
        """Look at the disk while contexts and images come and go; steps are the backend's."""
        while True:
            try:
                disk = self._workspace.disk()
            except OSError as error:
                self._gone = error
                return
            if disk.is_low and self._phase in {"fetching", "pushing"}:
                self._full = disk
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _disk_full(self) -> Envelope:
        assert self._full is not None
        failure = disk_full(self._full)
        return Envelope(outcome="failed", failure=failure, timings=self._timings())

    async def _build(self, spool: Spool) -> Envelope:
        try:
            await self._enter("fetching")
            secrets = await self._secrets()
            await self._backend.lend(self._order())
            await self._workspace.fetch(self._hold, self.grant.context)
        except IntegrityError as error:
            return self._failed("integrity", str(error))
        except _SecretsLost as error:
            return self._failed("secret", str(error))
        except ArchiveError as error:
            return self._failed("context", f"the context is refused: {error}")
        await self._enter("building")
        order = replace(self._order(), secrets=secrets, bases=self._hold.bases())
        built = await self._backend.build(order, spool.write, self._keeper.keep)
        if isinstance(built, Broken):
            return self._failed_build(built)
        await self._enter("pushing")
        try:
            pushed = await self._hold.push(built)
        except IntegrityError as error:
            return self._failed("integrity", str(error))
        except Unavailable as error:
            if error.problem.slug != "storage-full":
                raise
            # No other runner could push it either.
            return self._failed("disk-full", "the control plane's disk is full", str(error))
        await self._enter("reporting")
        return self._succeeded(built, pushed)

    async def _secrets(self) -> Mapping[str, bytes]:
        """Return the build's secrets; whoever has none does not ask."""
        if not self.grant.plan.secrets:
            return {}
        try:
            return await self._hold.secrets()
        except LeaseLost:
            raise
        except Refused as error:
            if error.problem.slug != "not-found":
                raise
            # No other attempt would get them either.
            raise _SecretsLost(str(error)) from error

    async def _enter(self, phase: Phase) -> None:
        """Go on to a phase. The router hears of it; a build does not wait for one that is away."""
        self._book()
        self._phase = phase
        with contextlib.suppress(Unavailable):
            if await self._hold.enter(phase):
                self.stop("cancelled")

    def _book(self) -> None:
        """Count the time until now for the phase that the build is in."""
        now = asyncio.get_running_loop().time()
        self._took[self._phase] = self._took.get(self._phase, 0) + int((now - self._began) * 1000)
        self._began = now

    async def _settle(
        self,
        envelope: Envelope | None,
        proof: StopProof | None,
        spool: Spool,
        sending: "asyncio.Task[None]",
    ) -> None:
        """Tell the router how it ended."""
        if self._wish == "cancelled":
            envelope = Envelope(outcome="cancelled", stop_proof=proof, timings=self._timings())
        elif self._wish == "lost":
            self.ended = "lost"
            return
        elif envelope is None or proof is None:
            await self._release()
            return
        with contextlib.suppress(TimeoutError, PierheadError):
            async with asyncio.timeout(LOG_SECONDS):
                await asyncio.shield(sending)
        if proof is not None and not proof.clean:
            log.error("build.leftovers", build=self.grant.build_id, proof=str(proof))
        await self._report(_with_log(envelope, spool))

    async def _release(self) -> None:
        reason: Literal["draining", "unhealthy"] = (
            "draining" if self._wish == "draining" else "unhealthy"
        )
        with contextlib.suppress(PierheadError):
            await self._hold.release(reason, self._why)
        self.ended = self.ended or "released"

    async def _report(self, envelope: Envelope) -> None:
        try:
            try:
                receipt = await self._hold.report(envelope)
            except Invalid as error:
                # It would be refused from any runner; the build should say so, not be tried again.
                failed = self._failed("runner", f"the result cannot be told: {error}")
                receipt = await self._hold.report(failed)
        except PierheadError as error:
            log.warning("result.refused", build=self.grant.build_id, detail=str(error))
            self.ended = "lost"
            return
        log.info("result.taken", build=self.grant.build_id, state=receipt.state)
        self.ended = "reported"

    async def _send(self, spool: Spool) -> None:
        try:
            await spool.send()
        except PierheadError:
            self.stop("lost")
        except OSError as error:  # the router hears that the log is not whole
            log.error("log.gone", build=self.grant.build_id, detail=str(error))

    async def _listen(self) -> None:
        """Wait for the wish to cancel; it also comes with heartbeats, only later."""
        while True:
            try:
                if (await self._hold.signals()).cancel_requested:
                    self.stop("cancelled")
                    return
            except Unavailable:
                await asyncio.sleep(AGAIN_SECONDS)
            except PierheadError:
                # After the result this is the normal end; before it, the next write says so too.
                return

    def _order(self) -> BuildOrder:
        folder = self._workspace.folder
        return BuildOrder(
            name=f"{self.grant.build_id}.{self.grant.fence}",
            slot=self.slot,
            project=self.grant.project,
            preview=self.grant.preview,
            context=folder / "context",
            work=folder,
            plan=self.grant.plan,
            memory_bytes=self._memory_bytes,
            cpu_weight=self._cpu_weight,
        )

    def _timings(self) -> Timings:
        self._book()
        return Timings(
            fetching_ms=self._took.get("fetching", 0),
            building_ms=self._took.get("building", 0),
            pushing_ms=self._took.get("pushing", 0),
            total_ms=sum(self._took.values()),
        )

    def _failed(self, cause: Cause, message: str, detail: str | None = None) -> Envelope:
        failure = Failure(cause=cause, message=message[:1000], detail=detail)
        return Envelope(outcome="failed", failure=failure, timings=self._timings())

    def _failed_build(self, broken: Broken) -> Envelope:
        return Envelope(
            outcome="failed",
            failure=broken.failure,
            timings=self._timings(),
            cache=broken.cache,
            peak_memory_bytes=broken.peak_memory_bytes,
            bytes_moved=BytesMoved(context_bytes=self.grant.context.size_bytes),
        )

    def _succeeded(self, built: Built, pushed: Pushed) -> Envelope:
        image = built.image
        return Envelope(
            outcome="succeeded",
            manifest_digest=image.platform.manifest_digest,
            config_digest=image.platform.config_digest,
            platforms=(image.platform,),
            config=image.config,
            timings=self._timings(),
            peak_memory_bytes=built.peak_memory_bytes,
            cache=built.cache,
            bytes_moved=BytesMoved(
                context_bytes=self.grant.context.size_bytes,
                pushed_bytes=pushed.sent_bytes,
                present_bytes=pushed.present_bytes,
                pushed_layers=pushed.sent_layers,
            ),
            warnings=built.warnings,
        )


def _with_log(envelope: Envelope, spool: Spool) -> Envelope:
    return msgspec.structs.replace(envelope, log_bytes=spool.size, log_digest=spool.digest)
