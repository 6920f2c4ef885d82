"""How often the queue is played ahead: seldom, whoever looks on, and soon for who has just come."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pierhead.protocol.plan import ContextRef, Plan, Submit
from pierhead.router.domain.build import Build
from pierhead.router.domain.waiting import WaitingPolicy
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.services.outlook import Outlooks
from tests.simulation.store import MemoryLedger

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT = ContextRef(digest="sha256:" + "a" * 64, size_bytes=1, unpacked_bytes=1, files=1)


@dataclass
class Counting(MemoryLedger):
    """A ledger that counts how often the queue was read."""

    read: list[int] = field(default_factory=list)

    def queued(
        self, after: int = 0, limit: int = 1000, *, project: str | None = None
    ) -> Sequence[StoredBuild]:
        found = super().queued(after, limit, project=project)
        self.read.append(len(found))
        return found


def queue(ledger: Counting, *names: str) -> list[StoredBuild]:
    submit = Submit(project="web", plan=Plan(), context=CONTEXT)
    return [
        ledger.add_build(
            StoredBuild(
                build=Build(id=name),
                sequence=0,
                submit=submit,
                trusted=True,
                created_at=NOW,
                queued_since=NOW,
            )
        )
        for name in names
    ]


def house(waiting: int) -> tuple[Counting, list[StoredBuild]]:
    ledger = Counting()
    return ledger, queue(ledger, *(f"b_{number}" for number in range(waiting)))


def plays(ledger: Counting, outlooks: Outlooks, stored: StoredBuild, seconds: float) -> bool:
    """Look at a build after so long; say whether the queue was played for it."""
    before = len(ledger.read)
    outlooks.of(ledger, stored, NOW + timedelta(seconds=seconds))
    return len(ledger.read) > before


def test_a_queue_is_played_once_for_all_who_look_within_a_second() -> None:
    ledger, (first, second) = house(2)
    outlooks = Outlooks(WaitingPolicy())

    seen = [plays(ledger, outlooks, one, at) for one, at in ((first, 0), (second, 0.9), (first, 2))]

    assert seen == [True, False, True]


def test_one_that_has_just_come_is_foreseen_at_once_in_a_short_queue() -> None:
    ledger, (first,) = house(1)
    outlooks = Outlooks(WaitingPolicy())
    assert plays(ledger, outlooks, first, 0)

    (second,) = queue(ledger, "b_second")

    assert plays(ledger, outlooks, second, 0.02)


def test_in_a_long_queue_nobody_is_a_reason_to_play_all_of_it_again() -> None:
    ledger, waiting = house(300)
    outlooks = Outlooks(WaitingPolicy())
    assert plays(ledger, outlooks, waiting[0], 0)

    newcomers = queue(ledger, "b_new", "b_newer")

    assert not plays(ledger, outlooks, newcomers[0], 1)
    assert plays(ledger, outlooks, newcomers[0], 1.6)
    assert not plays(ledger, outlooks, newcomers[1], 1.7)


def test_a_clock_that_is_set_back_does_not_make_an_old_answer_good() -> None:
    ledger, (first,) = house(1)
    outlooks = Outlooks(WaitingPolicy())

    assert plays(ledger, outlooks, first, 0)
    assert plays(ledger, outlooks, first, -3600)
