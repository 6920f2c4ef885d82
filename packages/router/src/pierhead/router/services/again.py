"""A build again, and a waiting build taken by the control plane's own machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from pierhead.protocol.build import BuildView, Rerun
from pierhead.router.domain.build import State
from pierhead.router.domain.errors import InvalidRequest, NoEligibleRunner
from pierhead.router.domain.matching import RunnerFacts, unfit
from pierhead.router.domain.parent import Parent
from pierhead.router.domain.token import Principal, require_project
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
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
        """Let this machine take a build that waits for others; of several platforms what it can.

        Raises:
            InvalidRequest: it does not wait.
            NoEligibleRunner: this machine builds nothing, or not this.
        """
        now = self.clock.now()

        def operation(ledger: Ledger) -> Sequence[StoredBuild]:
            stored = visible(ledger, principal, build_id)
            require_project(principal, stored.submit.project, stored.submit.environment)
            waiting = _waiting(ledger, stored)
            if not waiting:
                where = f" on {stored.last_runner}" if stored.last_runner else ""
                raise InvalidRequest(
                    f"{stored.id} does not wait: it is {stored.build.state}{where}",
                    hint=f"build it again: pierhead builds rerun {stored.id}",
                )
            here = [facts for facts in all_facts(ledger, now) if facts.here]
            asked = [
                replace(one, here_reason="it was asked for") for one in _able_here(waiting, here)
            ]
            for one in asked:
                ledger.save_build(one)
            return [stored if isinstance(stored.build, Parent) else asked[0], *asked]

        stored, *asked = await self.store.write(operation)
        announce(self.bells, *asked)
        return view_of(stored)


def _waiting(ledger: Ledger, stored: StoredBuild) -> Sequence[StoredBuild]:
    """Return what waits for a runner: the build, or its children."""
    found: Sequence[StoredBuild | None] = [stored]
    if isinstance(stored.build, Parent):
        found = [ledger.build(child.id) for child in stored.build.children]
    return [one for one in found if one is not None and one.build.state is State.QUEUED]


def _able_here(waiting: Sequence[StoredBuild], here: list[RunnerFacts]) -> Sequence[StoredBuild]:
    """Return those that this machine can build, of one or more.

    Raises:
        NoEligibleRunner: it can build none of them.
    """
    if not here:
        raise NoEligibleRunner("this machine builds nothing itself")
    reasons = [unfit(here[0], replace(wanted_of(one), here_allowed=True)) for one in waiting]
    able = [one for one, reason in zip(waiting, reasons, strict=True) if reason is None]
    if not able:
        raise NoEligibleRunner(f"this machine cannot build {waiting[0].id}: {reasons[0]}")
    return able
