"""A build again, and a waiting build taken by the control plane's own machine."""

from dataclasses import dataclass, replace

import msgspec

from pierhead.protocol.build import BuildView, Rerun
from pierhead.router.domain.build import State
from pierhead.router.domain.errors import InvalidRequest, NoEligibleRunner
from pierhead.router.domain.matching import RunnerFacts, unfit
from pierhead.router.domain.token import Principal, require_project
from pierhead.router.ports import Clock, Ledger, Store, StoredBuild
from pierhead.router.services.bells import Bells
from pierhead.router.services.facts import all_facts, wanted_of
from pierhead.router.services.lifecycle import announce
from pierhead.router.services.submit import Submissions, visible
from pierhead.router.services.views import view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What a submitter may ask of a build that was submitted before."""

    submissions: Submissions
    store: Store
    bells: Bells
    clock: Clock

    async def rerun(self, principal: Principal, build_id: str, request: Rerun) -> BuildView:
        """Submit the same plan and context again; nothing of the first build is changed.

        Raises:
            InvalidRequest: it had secrets, which are not kept.
        """
        stored = await self.store.read(lambda ledger: visible(ledger, principal, build_id))
        if names := stored.submit.plan.secrets:
            flags = " ".join(f"--secret id={name}" for name in names)
            raise InvalidRequest(
                f"{stored.id} had secrets, and they are not kept",
                hint=f"build the folder again: pierhead build {flags} .",
            )
        again = msgspec.structs.replace(stored.submit, key=request.key)
        return await self.submissions.submit(principal, again)

    async def run_here(self, principal: Principal, build_id: str) -> BuildView:
        """Let this machine take a build that waits for others.

        Raises:
            InvalidRequest: it does not wait.
            NoEligibleRunner: this machine builds nothing, or not this.
        """
        now = self.clock.now()

        def operation(ledger: Ledger) -> StoredBuild:
            stored = visible(ledger, principal, build_id)
            require_project(principal, stored.submit.project, stored.submit.environment)
            if stored.build.state is not State.QUEUED:
                where = f" on {stored.last_runner}" if stored.last_runner else ""
                raise InvalidRequest(
                    f"{stored.id} does not wait: it is {stored.build.state}{where}",
                    hint=f"build it again: pierhead builds rerun {stored.id}",
                )
            _require_here(stored, [facts for facts in all_facts(ledger, now) if facts.here])
            asked = replace(stored, here_reason="it was asked for")
            ledger.save_build(asked)
            return asked

        stored = await self.store.write(operation)
        announce(self.bells, stored)
        return view_of(stored)


def _require_here(stored: StoredBuild, here: list[RunnerFacts]) -> None:
    if not here:
        raise NoEligibleRunner("this machine builds nothing itself")
    unable = unfit(here[0], replace(wanted_of(stored), here_allowed=True))
    if unable is not None:
        raise NoEligibleRunner(f"this machine cannot build {stored.id}: {unable}")
