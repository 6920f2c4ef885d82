"""What this control plane can build, now."""

from dataclasses import dataclass

from pierhead.protocol.meta import ServerCapabilities
from pierhead.router.domain.token import Principal, ProjectHolder, require_submitter
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.facts import all_facts
from pierhead.router.services.views import runner_view


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilitiesOf:
    """Runners and limits, as whoever asks may see them. `host`: of references."""

    store: Store
    clock: Clock
    host: str

    async def look(self, principal: Principal) -> ServerCapabilities:
        """Return them; of the builds that run, only those of the token's project are named."""
        holder, now = require_submitter(principal), self.clock.now()
        only = holder.project if isinstance(holder, ProjectHolder) else None

        def operation(ledger: Ledger) -> ServerCapabilities:
            held: dict[str, list[str]] = {}
            for attempt in ledger.live_attempts():
                if only in {None, attempt.project}:
                    held.setdefault(attempt.runner, []).append(attempt.build_id)
            views = [
                runner_view(facts, tuple(held.get(facts.name, ())))
                for facts in all_facts(ledger, now)
            ]
            return ServerCapabilities(registry=self.host, runners=tuple(views))

        return await self.store.read(operation)
