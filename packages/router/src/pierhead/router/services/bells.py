"""Wake-ups inside one process. They carry no facts: who wakes looks at the store.

A ring is therefore never needed for correctness; a sweep each second rings for what was missed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pierhead.router.domain.matching import RunnerFacts, Wanted, emulates, rejection
from pierhead.router.domain.naming import family_of


@dataclass(eq=False, slots=True)
class Parked:
    """A runner that waits for work."""

    facts: RunnerFacts
    event: asyncio.Event
    displaced: bool = False  # it is answered now: the runner asked again, or is to hear something


class Bells:
    """Who waits for what, in the order of waiting."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._parked: list[Parked] = []
        self.draining = False

    @contextmanager
    def watch(self, build_id: str) -> Iterator[asyncio.Event]:
        """Hear of changes to a build: begun before one looks, so that none is missed.

        Of several platforms' builds a change to one may be a change to all: they ring together.
        """
        event, family = asyncio.Event(), family_of(build_id)
        self._watchers[family].add(event)
        try:
            yield event
        finally:
            watchers = self._watchers[family]
            watchers.discard(event)
            if not watchers:
                del self._watchers[family]

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for a ring since the last time, at most so long."""
        try:
            if not self.draining:
                async with asyncio.timeout(seconds):
                    await event.wait()
        except TimeoutError:
            pass
        event.clear()

    def changed(self, build_id: str) -> None:
        """Wake everybody who watches a build."""
        for event in self._watchers.get(family_of(build_id), ()):
            event.set()

    def park(self, facts: RunnerFacts) -> Parked:
        """Add a runner to those that wait for work; before it looks, so that no ring is lost."""
        for older in self._parked:
            if older.facts.name == facts.name:
                older.displaced = True
                older.event.set()
        parked = Parked(facts, asyncio.Event())
        self._parked.append(parked)
        return parked

    def leave(self, parked: Parked) -> None:
        """Take a runner away from those that wait."""
        self._parked.remove(parked)

    async def wait_for_work(self, parked: Parked, seconds: float) -> float:
        """Wait until there may be work, at most so long; return how many seconds are left of it.

        By the loop's time: the machine's clock may be set back meanwhile.
        """
        time = asyncio.get_running_loop().time
        until = time() + seconds
        await self.wait(parked.event, seconds)
        return until - time()

    def offer(self, wanted: Wanted) -> None:
        """Wake the one runner that has waited longest among those that fit; here comes last.

        Of the others, those that would emulate come last; after all of them, who broke over it.
        """

        def rank(parked: Parked) -> tuple[bool, bool, bool]:
            facts = parked.facts
            return facts.name in wanted.broken_on, facts.here, emulates(facts, wanted)

        for parked in sorted(self._parked, key=rank):
            if not parked.event.is_set() and rejection(parked.facts, wanted) is None:
                parked.event.set()
                return

    def wake_runner(self, name: str) -> None:
        """Wake one runner, if it waits."""
        for parked in self._parked:
            if parked.facts.name == name:
                parked.event.set()

    def recall(self) -> None:
        """Have every runner's request answered now: with the answer comes something to hear."""
        for parked in self._parked:
            parked.displaced = True
            parked.event.set()

    def drain(self) -> None:
        """Wake everybody for good: the server stops."""
        self.draining = True
        for parked in self._parked:
            parked.event.set()
        for watchers in self._watchers.values():
            for event in watchers:
                event.set()
