"""An authority without keys and files: what its rules are tried on."""

import itertools
from datetime import datetime, timedelta

from pierhead.router.domain.authority import Announced, Authority, Root, Steady, believed

LIFETIME = timedelta(days=3650)


class MemoryRoots:
    """Keeps one authority; its roots are numbers, and have the keys that real ones would have."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._numbers = itertools.count(1)
        self._made: dict[str, Root] = {}
        self.state: Authority = Steady(self.make())
        self.keys = {self.state.root.pin}

    def make(self) -> Root:
        root = Root(f"{next(self._numbers):064x}", self._now, self._now + LIFETIME)
        self._made = {root.pin: root}
        return root

    def enter(self, state: Authority) -> None:
        known = {root.pin for root in believed(self.state)} | set(self._made)
        assert {root.pin for root in believed(state)} <= known
        self._count(state)

    def begin_anew(self, state: Steady) -> None:
        assert state.root.pin in self._made
        self._count(state)

    def _count(self, state: Authority) -> None:
        self.state, self._made = state, {}
        signs = {state.root.pin}
        self.keys = signs | {state.coming.pin} if isinstance(state, Announced) else signs
