"""The life of a build as a stream: what happened, and the bytes of its log, in order.

An event was stored with the size that the log had then. So the stream is: the log up to there, the
event, the log up to the next one, and so on; after the last event, whatever the log has by now. A
cursor names both positions, and a reader that comes back with it misses nothing and gets nothing
twice.

A build for several platforms has no log of its own. Its stream is what happens to itself, and the
streams of its children beside each other, each event with its platform.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import msgspec

from pierhead.protocol.build import Event, Finished, Log, Notice, Queued, Step
from pierhead.router.domain.errors import InvalidRequest, NotFound
from pierhead.router.domain.logbook import Cursor
from pierhead.router.domain.parent import Parent
from pierhead.router.domain.token import Principal
from pierhead.router.ports.builds import StoredBuild, StoredEvent
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.bells import Bells
from pierhead.router.services.outlook import Outlook, Outlooks
from pierhead.router.services.submit import visible

LOG_EVENT_BYTES: Final = 64 * 1024
# A ring may be missed only across a restart of the server; then this is how late a viewer sees it.
LOOK_AGAIN_SECONDS: Final = 5.0
_EVENT: Final = msgspec.json.Decoder(Event)
_FINISHED: Final = str(Finished.__struct_config__.tag)
_STEP: Final = str(Step.__struct_config__.tag)
_QUEUED: Final = str(Queued.__struct_config__.tag)


@dataclass(slots=True)
class _Reader:
    """Where a reader stands: its cursor, and the attempt whose log it reads."""

    build_id: str
    platform: str | None  # of one of several
    cursor: Cursor
    fence: int
    outlook: Outlook = field(default_factory=Outlook)

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
    clock: Clock
    outlooks: Outlooks

    async def stored(self, principal: Principal, build_id: str) -> StoredBuild:
        """Return the build, if the principal may see it."""
        return await self.store.read(lambda ledger: visible(ledger, principal, build_id))

    async def log(self, principal: Principal, build_id: str, offset: int, limit: int) -> bytes:
        """Return stored bytes of the latest attempt's log.

        Raises:
            InvalidRequest: the build is for several platforms, and each has a log of its own.
            NotFound: the log was kept long enough.
        """
        stored = await self.stored(principal, build_id)
        if isinstance(stored.build, Parent):
            each = ", ".join(f"{child.id} ({child.platform})" for child in stored.build.children)
            hint = f"read one of them: {each}"
            raise InvalidRequest(f"{stored.id} has a log for each platform", hint=hint)
        fence, envelope = stored.build.fence, stored.envelope
        had_one = stored.log_complete and envelope is not None and envelope.log_bytes > 0
        if had_one and not self.logs.size(stored.id, fence):
            hint = "logs are kept for as long as `pierhead serve --keep-logs` says"
            raise NotFound(f"the log of {build_id} is not kept any more", hint=hint)
        return await self.logs.read(stored.id, fence, offset, limit)

    async def stream(self, build_id: str, cursor: Cursor) -> AsyncIterator[Event]:
        """Yield events until the last one, or until the server stops."""
        own, *children = await self.store.read(lambda ledger: _readers(ledger, build_id, cursor))
        with self.bells.watch(build_id) as ring:
            while not self.bells.draining:
                mine, theirs, final = await self._look(own, children)
                # The end is told after all that led to it.
                ends = [event for event in mine if event.kind == _FINISHED]
                before = [event for event in mine if event.kind != _FINISHED]
                told = [(own, before), *zip(children, theirs, strict=True), (own, ends)]
                for reader, events in told:
                    async for event in self._tell(reader, events):
                        yield msgspec.structs.replace(event, cursor=str(_cursor(own, children)))
                if ends or (final and not mine and not any(theirs)):
                    return
                await self.bells.wait(ring, LOOK_AGAIN_SECONDS)

    async def _look(
        self, own: _Reader, children: Sequence[_Reader]
    ) -> tuple[Sequence[StoredEvent], Sequence[Sequence[StoredEvent]], bool]:
        """Return what happened since, to it and to its children, and whether more can."""
        now = self.clock.now()

        def operation(
            ledger: Ledger,
        ) -> tuple[Sequence[StoredEvent], Sequence[Sequence[StoredEvent]], bool]:
            stored = ledger.build(own.build_id)
            final = stored is None or stored.build.finished_at is not None
            mine, *theirs = [self._since(ledger, reader, now) for reader in (own, *children)]
            return mine, theirs, final

        return await self.store.read(operation)

    def _since(self, ledger: Ledger, reader: _Reader, now: datetime) -> Sequence[StoredEvent]:
        events = ledger.events(reader.build_id, reader.cursor.sequence)
        if any(event.kind == _QUEUED for event in events):
            stored = ledger.build(reader.build_id)
            reader.outlook = self.outlooks.of(ledger, stored, now) if stored else Outlook()
        return events

    async def _tell(self, reader: _Reader, events: Sequence[StoredEvent]) -> AsyncIterator[Event]:
        """Yield what a reader has not seen: the events, and the log before, between and after."""
        last_step = [event.sequence for event in events if event.kind == _STEP][-1:]
        for event in events:
            async for log in self._log_until(reader, event.log_size):
                yield log
            reader.pass_event(event)
            told = _looked(_EVENT.decode(event.payload), reader)
            if event.sequence in last_step:
                told = _running(told, self.clock.now())
            yield _marked(told, reader.platform)
        size = self.logs.size(reader.build_id, reader.fence) if reader.fence else 0
        async for log in self._log_until(reader, size):
            yield log

    async def _log_until(self, reader: _Reader, end: int) -> AsyncIterator[Log]:
        while (offset := reader.cursor.offset) < end:
            limit = min(LOG_EVENT_BYTES, end - offset)
            data = await self.logs.read(reader.build_id, reader.fence, offset, limit)
            if not data:
                return
            reader.cursor = Cursor(reader.cursor.sequence, offset + len(data))
            yield Log(cursor="", offset=offset, data=data, platform=reader.platform)


def _fence_at(events: Sequence[StoredEvent], sequence: int) -> int:
    """Return the attempt whose log was current after an event."""
    started = [e.fence for e in events if e.kind == "started" and e.sequence <= sequence]
    return started[-1] if started else 0


def _readers(ledger: Ledger, build_id: str, cursor: Cursor) -> Sequence[_Reader]:
    """Return who reads what: the build itself, then each of its children."""
    stored = ledger.build(build_id)
    children = stored.build.children if stored and isinstance(stored.build, Parent) else ()
    whose = [(build_id, None), *((child.id, child.platform) for child in children)]
    places = (replace(cursor, children=()), *cursor.children)
    places += (Cursor(),) * (len(whose) - len(places))
    return [
        _Reader(one, platform, place, _fence_at(ledger.events(one, 0), place.sequence))
        for (one, platform), place in zip(whose, places, strict=False)
    ]


def _cursor(own: _Reader, children: Sequence[_Reader]) -> Cursor:
    return replace(own.cursor, children=tuple(child.cursor for child in children))


def _looked(event: Event, reader: _Reader) -> Event:
    """Return an event with what is known now: how it looks for a build that waits."""
    if not isinstance(event, Queued):
        return event
    looks = reader.outlook
    return msgspec.structs.replace(
        event, position=looks.place, expected_wait_seconds=looks.wait_seconds
    )


def _running(event: Event, now: datetime) -> Event:
    """Return the last step with how long it has run: who watches came late, by another clock."""
    if not isinstance(event, Step) or event.state != "started":
        return event
    ran = now - datetime.fromisoformat(event.at)
    return msgspec.structs.replace(event, ran_ms=max(0, int(ran.total_seconds() * 1000)))


def _marked(event: Event, platform: str | None) -> Event:
    """Return an event as its build's stream has it, or as that of the build's parent has it."""
    if platform is None:
        return event
    if not isinstance(event, Finished):
        return msgspec.structs.replace(event, platform=platform)
    view = event.build
    failure = view.result.failure if view.result else None
    where = f" on {view.runner}" if view.runner else ""
    why = f": {failure.message}" if failure else ""
    return Notice(cursor="", text=f"{view.state}{where}{why}", platform=platform)
