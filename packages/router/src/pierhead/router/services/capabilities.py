"""What this control plane can build, now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pierhead.protocol.meta import BuildCounts, Concern, ServerCapabilities
from pierhead.router.domain.concern import Shown, concerns
from pierhead.router.domain.token import Principal, ProjectHolder, require_submitter
from pierhead.router.ports.roots import Roots
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.authority import machines_of
from pierhead.router.services.facts import all_facts
from pierhead.router.services.views import runner_view


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilitiesOf:
    """Runners and limits, as whoever asks may see them. `host`: of references.

    `shown`: the certificates of handshakes.
    """

    store: Store
    clock: Clock
    host: str
    roots: Roots | None
    shown: Callable[[], Sequence[Shown]]

    async def look(self, principal: Principal) -> ServerCapabilities:
        """Return them; of the builds that run, only those of the token's project are named."""
        holder, now = require_submitter(principal), self.clock.now()
        only = holder.project if isinstance(holder, ProjectHolder) else None

        def operation(ledger: Ledger) -> ServerCapabilities:
            live = [one for one in ledger.live_attempts() if only in {None, one.project}]
            held: dict[str, list[str]] = {}
            for attempt in live:
                held.setdefault(attempt.runner, []).append(attempt.build_id)
            views = [
                runner_view(facts, tuple(held.get(facts.name, ())))
                for facts in all_facts(ledger, now)
            ]
            told = () if isinstance(holder, ProjectHolder) else self._concerns(ledger, now)
            counts = BuildCounts(running=len(live), waiting=ledger.queue_length(only), project=only)
            return ServerCapabilities(
                registry=self.host, runners=tuple(views), builds=counts, concerns=told
            )

        return await self.store.read(operation)

    def _concerns(self, ledger: Ledger, now: datetime) -> tuple[Concern, ...]:
        authority = None if self.roots is None else self.roots.state
        return tuple(
            Concern(what=one.what, text=one.text, remedy=one.remedy, needs_you=one.needs_you)
            for one in concerns(authority, machines_of(ledger), self.shown(), now)
        )
