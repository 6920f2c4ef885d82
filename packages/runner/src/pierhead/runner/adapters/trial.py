"""What this machine keeps of what builds are promised: a tiny build looks around.

It has everything around it that a build has, so nothing is believed that was not seen.
"""

import asyncio
import os
import zlib
from typing import Final

from pierhead.protocol.plan import Plan
from pierhead.protocol.programs import ROOTLESS
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters import programs
from pierhead.runner.adapters.attempt import Attempts
from pierhead.runner.adapters.cgroup import PIDS_MAX
from pierhead.runner.adapters.probe import Note, reaches_us, write_context
from pierhead.runner.domain import probe as probes
from pierhead.runner.domain import programs as rules
from pierhead.runner.domain.probe import Check
from pierhead.runner.ports import Broken, BuilderLostError, BuildOrder, Group
from pierhead.runner.removal import remove_tree

_TRIES: Final = 3
_SECONDS: Final = 60


class Trial:
    """Tries what builds are promised; remembers what is kept, and tries again what is not."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        # Networks and cgroups are the machine's: two runners on it must not try the same ones.
        self._name = f"probe-{zlib.crc32(bytes(attempts.state)):08x}.0"
        self._note = Note(attempts.state)
        self._trying = asyncio.Lock()
        self._lacking: list[str] | None = None
        self._seen = programs.seen()
        self._doubted: str | None = None

    def outdated(self) -> str | None:
        """Say why what was found out may not hold any more; none: it does, as far as is known."""
        return rules.changed(self._seen, programs.seen()) or self._doubted

    async def lacks(self) -> list[str]:
        """Return what keeps builds from being isolated; tried once."""
        async with self._trying:
            if self._lacking is None:
                self._lacking = self._missing()
                if not self._lacking and not await self._note.is_good():
                    self._lacking = await self._isolated_repeatedly()
            return self._lacking

    async def lacks_still(self) -> list[str]:
        """Return the same; what was said to be amiss, or may be, is tried again."""
        if self._lacking or self.outdated():
            self._lacking = None
        self._seen, self._doubted = programs.seen(), None
        return await self.lacks()

    def doubt(self) -> None:
        """Have it tried again: a build broke in a way that is not its own."""
        self._note.forget()
        self._doubted = "a build broke here: what this machine can do is tried first"

    async def examine(self) -> list[Check]:
        """Try all that builds are promised, now, and say how each went."""
        if self._missing():
            return [await self.plain()]
        return await self._isolated()

    def _missing(self) -> list[str]:
        missing = rules.missing(self._seen, programs.wanted())
        return missing if os.geteuid() == 0 else [*missing, "not root: run it as root"]

    async def _isolated_repeatedly(self) -> list[str]:
        """A fault that passes must not cost the isolation of all builds to come."""
        lacking: list[str] = []
        for attempt in range(_TRIES):
            await asyncio.sleep(attempt)
            lacking = probes.lacks(await self._isolated())
            if not lacking:
                await self._note.write()
                break
        return lacking

    async def _isolated(self) -> list[Check]:
        """Let a tiny build look around, with everything that stands around a build."""
        if not cgroups.available():
            return [probes.failed("there are no cgroups with memory, pids and cpu")]
        order, output = await self._order(), bytearray()
        try:
            cgroup, gateway = await self._attempts.open(order)
            network = networks.network_of(order.name)
            link = await networks.number_of(network)
            ended, reached = await asyncio.gather(
                self._attempts.build(order, cgroup, output.extend, _nobody),
                reaches_us(network, gateway),
            )
            around = probes.Around(
                link=link,
                reached=reached,
                memory_bytes=cgroup.memory_limit(),
                processes=cgroup.processes_limit(),
                processes_wanted=PIDS_MAX,
                steps_peak_bytes=cgroup.peak_memory_of_steps(),
            )
        except (OSError, RuntimeError, BuilderLostError) as error:
            return [_failed(error, output)]
        finally:
            await self._clear(order)
        said = output.decode("utf-8", "replace")
        if isinstance(ended, Broken):
            return [probes.failed(_words(ended))]
        return [probes.built(said), *probes.isolated(said, around)]

    async def unable(self) -> str | None:
        """Say why nothing can be built here, isolated or not; none: it can."""
        wanted = ROOTLESS if os.geteuid() != 0 else ("buildah",)
        missing = rules.missing(self._seen, wanted)
        if missing:
            return ", ".join(missing)
        tried = await self.plain()
        return tried.text if tried.remedy else None

    async def plain(self) -> Check:
        """Let the same build run without isolation, as on a machine that cannot isolate."""
        order, output = await self._order(), bytearray()
        try:
            ended = await self._attempts.build(order, None, output.extend, _nobody)
        except (OSError, RuntimeError, BuilderLostError) as error:
            return _failed(error, output)
        finally:
            await self._clear(order)
        if isinstance(ended, Broken):
            return probes.failed(_words(ended))
        return probes.built(output.decode("utf-8", "replace"))

    async def _order(self) -> BuildOrder:
        """Return the order of the tiny build, with its context."""
        work = self._attempts.state / "probe"
        await write_context(work / "context")
        return BuildOrder(
            name=self._name,
            slot=0,
            project=self._name,
            context=work / "context",
            work=work,
            plan=Plan(timeout_seconds=_SECONDS),
            memory_bytes=probes.MEMORY_BYTES,
        )

    async def _clear(self, order: BuildOrder) -> None:
        home = self._attempts.home(order)
        await self._attempts.clear(order.name, home)
        for folder in (home.folder, order.work):
            await asyncio.to_thread(remove_tree, folder)


def _failed(error: Exception, output: bytearray) -> Check:
    return probes.failed(f"{error} {output.decode('utf-8', 'replace')}")


def _nobody(_: Group) -> None:
    """A tiny build has no lease: its time is all that ends it."""


def _words(broken: Broken) -> str:
    failure = broken.failure
    said = [failure.message, failure.detail or "", *failure.extract[-3:]]
    return "; ".join(filter(None, said))
