"""The steps of a build as events, each where its line ends in the log.

Only lines that were just stored are looked at, so a part that is sent twice begins no step twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from pierhead.protocol import build as wire
from pierhead.router.domain.build import State
from pierhead.router.domain.steps import LINE_BYTES_MAX, Mark, marks
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.lifecycle import Lifecycle
from pierhead.router.services.views import rfc3339

Ended: TypeAlias = Literal["cached", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Finds steps in what is added to a log, and ends the one before."""

    store: Store
    lifecycle: Lifecycle
    logs: Logs
    clock: Clock

    async def note(self, build_id: str, fence: int, before: int) -> None:
        """Record the steps that begin in what was stored since the log had `before` bytes."""
        size = self.logs.size(build_id, fence)
        begin = max(0, before - LINE_BYTES_MAX)
        data = await self.logs.read(build_id, fence, begin, size - begin)
        if begin:  # with the first whole line
            cut = data.find(b"\n") + 1
            begin, data = begin + cut, data[cut:]
        found = marks(data, begin, before)
        if found:
            now = self.clock.now()
            await self.store.write(lambda ledger: self._record(ledger, build_id, fence, found, now))

    def _record(
        self, ledger: Ledger, build_id: str, fence: int, found: Sequence[Mark], now: datetime
    ) -> None:
        stored = ledger.build(build_id)
        if stored is None or stored.build.state is not State.LEASED or stored.build.fence != fence:
            return
        for mark in found:
            if mark.name is None:
                self.end(ledger, stored, "cached", now, at=mark.end)
                continue
            self.end(ledger, stored, "done", now, at=mark.end)
            began = rfc3339(now) or ""
            step = wire.Step(cursor="", name=mark.name, state="started", at=began)
            self.lifecycle.record(ledger, stored, step, at=mark.end)

    def end(
        self,
        ledger: Ledger,
        stored: StoredBuild,
        state: Ended,
        now: datetime,
        *,
        at: int | None = None,
    ) -> None:
        """Record how the step that is under way ended, if there is one."""
        running = running_step(ledger, stored)
        if running is None:
            return
        took = now - datetime.fromisoformat(running.at)
        ended = wire.Step(
            cursor="",
            name=running.name,
            state=state,
            at=rfc3339(now) or "",
            took_ms=max(0, int(took.total_seconds() * 1000)),
        )
        self.lifecycle.record(ledger, stored, ended, at=at)


def running_step(ledger: Ledger, stored: StoredBuild) -> wire.Step | None:
    """Return the step that is under way, if there is one."""
    events = [
        event
        for event in ledger.events(stored.id, 0)
        if event.kind == "step" and event.fence == stored.build.fence
    ]
    if not events:
        return None
    last = msgspec.json.decode(events[-1].payload, type=wire.Step)
    return last if last.state == "started" else None
