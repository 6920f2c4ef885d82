"""The life of a build as a stream: what happened, and the bytes of its log, in order.

An event was stored with the size that the log had then. So the stream is: the log up to there, the
event, the log up to the next one, and so on; after the last event, whatever the log has by now. A
cursor names both positions, and a reader that comes back with it misses nothing and gets nothing
twice.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pierhead.protocol.build import Event, Finished, Log
from pierhead.router.domain.errors import NotFound
from pierhead.router.domain.logbook import Cursor
from pierhead.router.domain.token import Principal
from pierhead.router.ports import Ledger, Logs, Store, StoredBuild, StoredEvent
from pierhead.router.services.bells import Bells
from pierhead.router.services.submit import visible

LOG_EVENT_BYTES: Final = 64 * 1024
# A ring may be missed only across a restart of the server; then this is how late a viewer sees it.
LOOK_AGAIN_SECONDS: Final = 5.0
_EVENT: Final = msgspec.json.Decoder(Event)


@dataclass(slots=True)
class _Reader:
    """Where a reader stands: its cursor, and the attempt whose log it reads."""

    build_id: str
    cursor: Cursor
    fence: int

    def pass_event(self, event: StoredEvent) -> None:
        """Go on behind an event; each attempt's log begins anew."""
        started = event.kind == "started"
        self.fence = event.fence if started else self.fence
        self.cursor = Cursor(event.sequence, 0 if started else self.cursor.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Streams and logs of builds, for whoever may see them."""

    store: Store
    logs: Logs
    bells: Bells

    async def stored(self, principal: Principal, build_id: str) -> StoredBuild:
        """Return the build, if the principal may see it."""
        return await self.store.read(lambda ledger: visible(ledger, principal, build_id))

    async def log(self, principal: Principal, build_id: str, offset: int, limit: int) -> bytes:
        """Return stored bytes of the latest attempt's log."""
        stored = await self.stored(principal, build_id)
        fence, envelope = stored.build.fence, stored.envelope
        had_one = stored.log_complete and envelope is not None and envelope.log_bytes > 0
        if had_one and not self.logs.size(stored.id, fence):
            hint = "logs are kept for as long as `pierhead serve --keep-logs` says"
            raise NotFound(f"the log of {build_id} is not kept any more", hint=hint)
        return await self.logs.read(stored.id, fence, offset, limit)

    async def stream(self, build_id: str, cursor: Cursor) -> AsyncIterator[Event]:
        """Yield events until the last one, or until the server stops."""
        before = await self.store.read(lambda ledger: ledger.events(build_id, 0))
        reader = _Reader(build_id, cursor, _fence_at(before, cursor.sequence))
        with self.bells.watch(build_id) as ring:
            while not self.bells.draining:
                events, final = await self._look(reader)
                for event in events:
                    async for log in self._log_until(reader, event.log_size):
                        yield log
                    reader.pass_event(event)
                    yield _with_cursor(event, reader.cursor)
                    if event.kind == Finished.__struct_config__.tag:
                        return
                size = self.logs.size(build_id, reader.fence) if reader.fence else 0
                async for log in self._log_until(reader, size):
                    yield log
                if final and not events:
                    return
                await self.bells.wait(ring, LOOK_AGAIN_SECONDS)

    async def _look(self, reader: _Reader) -> tuple[Sequence[StoredEvent], bool]:
        """Return what happened since, and whether anything more can."""

        def operation(ledger: Ledger) -> tuple[Sequence[StoredEvent], bool]:
            stored = ledger.build(reader.build_id)
            final = stored is None or stored.build.finished_at is not None
            return ledger.events(reader.build_id, reader.cursor.sequence), final

        return await self.store.read(operation)

    async def _log_until(self, reader: _Reader, end: int) -> AsyncIterator[Log]:
        while (offset := reader.cursor.offset) < end:
            limit = min(LOG_EVENT_BYTES, end - offset)
            data = await self.logs.read(reader.build_id, reader.fence, offset, limit)
            if not data:
                return
            reader.cursor = Cursor(reader.cursor.sequence, offset + len(data))
            yield Log(cursor=str(reader.cursor), offset=offset, data=data)


def _fence_at(events: Sequence[StoredEvent], sequence: int) -> int:
    """Return the attempt whose log was current after an event."""
    started = [e.fence for e in events if e.kind == "started" and e.sequence <= sequence]
    return started[-1] if started else 0


def _with_cursor(event: StoredEvent, cursor: Cursor) -> Event:
    return msgspec.structs.replace(_EVENT.decode(event.payload), cursor=str(cursor))
