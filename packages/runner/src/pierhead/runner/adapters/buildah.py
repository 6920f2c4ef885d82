"""The buildah backend: always there on Debian, needs no daemon.

As root, every build has its own process, mount and network namespace, its own root and its own
cgroup; each step runs in a container of runc inside them. As another user, or where one of these
cannot be had, a build is not isolated, and `probe` says so.

After any kill, buildah leaves a working container with its mount. Each slot has a store of its own,
so that clearing it away cannot touch another build, and within it each project: what one has built
or cached is not there for another.
"""

import contextlib
import math
import os
import shutil
import sys
from pathlib import Path

from pierhead.protocol.platform import normalise_platform
from pierhead.protocol.result import CacheUse, Failure, StopProof
from pierhead.protocol.runner import Capabilities
from pierhead.protocol.version import RELEASE
from pierhead.runner.adapters import dockerfile, isolation
from pierhead.runner.adapters.attempt import Attempts, Ceilings
from pierhead.runner.adapters.process import run
from pierhead.runner.adapters.trial import Trial
from pierhead.runner.domain.invocation import refusal
from pierhead.runner.domain.probe import Check
from pierhead.runner.ports import (
    Broken,
    BuilderLostError,
    BuildOrder,
    Built,
    KeepGroup,
    LogSink,
)


class BuildahBackend:
    """Builds with buildah below one folder."""

    def __init__(
        self,
        state: Path,
        *,
        slots: int,
        memory_bytes: int | None,
        cpus: float | None = None,
        disk_bytes: int | None = None,
    ) -> None:
        self._slots = slots
        self._ceilings = Ceilings(memory_bytes=memory_bytes, cpus=cpus, disk_bytes=disk_bytes)
        self._attempts = Attempts(state.absolute(), self._ceilings)
        self._trial = Trial(self._attempts)
        self._promised = False  # that builds are isolated

    def lack(self) -> str | None:
        """Say why what `probe` said may not be true any more: programs come and go."""
        return self._trial.outdated()

    async def probe(self) -> Capabilities:
        """Say what this machine can do, by doing it once; no slots where nothing can be built."""
        lacking = await self._trial.lacks_still()
        version = await run("buildah", "--version")
        name = " ".join(version.output.split()[:3]).replace(" version", "")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits, usable = {}, True
        self._promised = not lacking
        if lacking:
            limits["isolation"] = ", ".join(lacking)[:1000]
            unable = await self._trial.unable()
            if unable is not None:
                usable, limits["backend"] = False, unable[:1000]
        elif isolation.resolvers() is None:
            limits["dns"] = "no name server that a build can reach: the machine names only loopback"
        machine, ceilings = os.uname(), self._ceilings
        return Capabilities(
            platforms=(normalise_platform(machine.sysname, machine.machine),),
            backend=name if version.code == 0 else "none",
            isolation="none" if lacking else "full",
            networks=("default",) if lacking else ("default", "none"),
            cpus=min(os.cpu_count() or 1, math.ceil(ceilings.cpus or sys.maxsize)),
            disk_free_bytes=shutil.disk_usage(self._attempts.state).free,
            memory_bytes=min(memory, ceilings.memory_bytes or memory),
            total_memory_bytes=memory,
            slots=self._slots if usable else 0,
            limits=limits,
            release=RELEASE,
        )

    async def lend(self, order: BuildOrder) -> None:
        """Move the context that the project's last build left to where this one's will be."""
        with contextlib.suppress(FileNotFoundError):
            self._attempts.home(order).context.rename(order.context)

    async def build(self, order: BuildOrder, log: LogSink, keep: KeepGroup) -> Built | Broken:
        """Build in the order's slot, and export the image as an OCI layout.

        Raises:
            BuilderLostError: the machine cannot build any more.
        """
        refused = refusal(order.plan) or dockerfile.problem_with(order)
        translated = refused or dockerfile.translated(order)
        if isinstance(translated, Failure):
            return _not_begun(translated)
        isolated = not await self._trial.lacks()
        if self._promised and not isolated:
            raise BuilderLostError("builds are not isolated here any more")
        if order.secrets and not isolated:
            message = "this runner cannot keep secrets safe"
            return _not_begun(Failure(cause="secret", message=message))
        cgroup = (await self._attempts.open(order))[0] if isolated else None
        try:
            found = await self._attempts.build(order, cgroup, log, keep, translated=translated)
        except BuilderLostError:
            self._trial.doubt()
            raise
        if isinstance(found, Broken) and found.failure.fault == "either":
            self._trial.doubt()
        return found

    async def stop(self, order: BuildOrder) -> StopProof:
        """Kill, clear away, look again."""
        return await self._attempts.stop(order)

    async def sweep(self) -> StopProof:
        """Clear away what earlier lives of this runner left; it holds the state folder's lock."""
        return await self._attempts.sweep()

    async def examine(self) -> list[Check]:
        """Try all that builds are promised, now, and say how each went."""
        return await self._trial.examine()


def _not_begun(failure: Failure) -> Broken:
    return Broken(failure=failure, cache=CacheUse(), peak_memory_bytes=None)
