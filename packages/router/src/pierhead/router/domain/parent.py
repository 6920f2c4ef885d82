"""The life of a build for several platforms: a parent, with an ordinary build for each platform.

A parent only joins. No runner ever gets it; it hears how its children fare, in the transaction in
which they do, and `decide()` says what follows. It is all or none: it has succeeded when every
child has, and the first child that ends otherwise ends its siblings. It is final only when all of
them are, so that nothing of it runs any more when somebody is told its end.

Not here: what a child's life is (`build`), and what is made of the children's images (`index`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias

from pierhead.router.domain.build import (
    FINAL,
    Build,
    Cancel,
    CancelWish,
    Finished,
    State,
    already_over,
)

# Once a child began, the parent has begun, even if that child waits again.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.LEASED, State.FAILED, State.CANCELLED}),
    State.LEASED: frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}
ALL_OR_NONE: Final = "an image is for all of its platforms, or for none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One platform's build, as its parent knows it."""

    id: str
    platform: str
    state: State = State.QUEUED


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent(Build):
    """A build for several platforms as stored. It is `leased` while a child was, and has no lease.

    `culprit` is the child that failed first.
    """

    children: tuple[Child, ...]
    culprit: str | None = None

    def __post_init__(self) -> None:
        states = {child.state for child in self.children}
        assert self.lease is None, self
        assert self.fence == 0, self
        assert len(self.children) > 1, self
        assert (self.state in FINAL) == (states <= FINAL), self
        assert (self.state in FINAL) == (self.finished_at is not None), self
        assert (self.state is State.SUCCEEDED) == (states == {State.SUCCEEDED}), self

    def child(self, child_id: str) -> Child:
        """Return one of the children."""
        return next(child for child in self.children if child.id == child_id)


@dataclass(frozen=True, slots=True)
class Heard:
    """A child came to another state; `wish`: who wanted it to end, if anybody did."""

    child: str
    state: State
    wish: CancelWish | None = None


Command: TypeAlias = Heard | Cancel


@dataclass(frozen=True, slots=True)
class EndChild:
    """Cancel a child."""

    child: str
    wish: CancelWish


Effect: TypeAlias = EndChild | Finished
Decision: TypeAlias = tuple[Parent, Sequence[Effect]]


def decide(parent: Parent, command: Command, *, now: datetime) -> Decision:
    """Apply one command.

    Raises:
        BuildFinished: it has its end already. The parent is unchanged.
    """
    if isinstance(command, Heard):
        return _hear(parent, command, now)
    if parent.state is State.CANCELLED or parent.cancel is not None:
        return parent, []
    if parent.state in FINAL:
        raise already_over(parent.id, parent.state)
    wish = CancelWish(by=command.by, reason=command.reason)
    return replace(parent, cancel=wish), _ends(parent, wish)


def _hear(parent: Parent, heard: Heard, now: datetime) -> Decision:
    known = parent.child(heard.child)
    if known.state in FINAL:
        return parent, []
    news = replace(known, state=heard.state)
    children = tuple(news if child is known else child for child in parent.children)
    if {child.state for child in children} <= FINAL:
        return _finish(parent, children, heard, now)
    begun = heard.state in {State.LEASED, State.SUCCEEDED}
    state = State.LEASED if begun else parent.state
    return _first_end(replace(parent, children=children, state=state), news, heard.wish)


def _first_end(parent: Parent, news: Child, wish: CancelWish | None) -> Decision:
    """End the siblings of the first child that ended without an image."""
    if parent.culprit or parent.cancel or news.state not in {State.FAILED, State.CANCELLED}:
        return parent, []
    if news.state is State.FAILED:
        blamed = CancelWish(by=f"the build for {news.platform}", reason=f"it failed: {ALL_OR_NONE}")
        return replace(parent, culprit=news.id), _ends(parent, blamed)
    assert wish is not None, news
    return replace(parent, cancel=wish), _ends(parent, wish)


def _ends(parent: Parent, wish: CancelWish) -> list[EndChild]:
    return [EndChild(child.id, wish) for child in parent.children if child.state not in FINAL]


def _finish(parent: Parent, children: tuple[Child, ...], heard: Heard, now: datetime) -> Decision:
    culprit, cancel = parent.culprit, parent.cancel
    if culprit is None and cancel is None:
        culprit = heard.child if heard.state is State.FAILED else None
        cancel = heard.wish if heard.state is State.CANCELLED else None
    # As with a single build: whoever cancelled was told that no image comes of it.
    state = State.CANCELLED if cancel else State.FAILED if culprit else State.SUCCEEDED
    final = replace(
        parent, children=children, culprit=culprit, cancel=cancel, state=state, finished_at=now
    )
    return final, [Finished(state)]
