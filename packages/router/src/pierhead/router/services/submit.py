"""Submitting, cancelling and finding builds."""

import asyncio
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import msgspec

from pierhead.protocol.build import BuildPage, BuildView, CancelRequest, Queued
from pierhead.protocol.plan import SECRETS_BYTES_MAX, Submit
from pierhead.protocol.platform import normalise_platform
from pierhead.router.domain import waiting
from pierhead.router.domain.build import Build, Cancel, State
from pierhead.router.domain.errors import (
    Draining,
    InvalidRequest,
    KeyReused,
    NotFound,
    PlanUnsupported,
    QueueFull,
    TooLarge,
)
from pierhead.router.domain.matching import RunnerFacts, asked_for, explain
from pierhead.router.domain.naming import child_id
from pierhead.router.domain.parent import Child, Parent
from pierhead.router.domain.secretlike import require_no_secret
from pierhead.router.domain.token import (
    Owner,
    Principal,
    ProjectHolder,
    name_of,
    require_project,
    require_submitter,
    require_view,
)
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock, Entropy
from pierhead.router.ports.vault import Vault
from pierhead.router.services.bells import Bells
from pierhead.router.services.facts import all_facts, wanted_by, wanted_of
from pierhead.router.services.lifecycle import Lifecycle, announce
from pierhead.router.services.outlook import Outlook, Outlooks
from pierhead.router.services.projects import check_limit, place_for
from pierhead.router.services.steps import running_step
from pierhead.router.services.sweep import consider_here
from pierhead.router.services.views import view_of

# Every grant looks at the whole queue; with so many it still takes some milliseconds.
QUEUE_MAX: Final = 1000
# No project fills the queue for the others.
QUEUE_OF_PROJECT_MAX: Final = 200
QUEUE_RETRY_MS: Final = 10_000
DRAIN_RETRY_MS: Final = 1000
_AFTER: Final = re.compile(r"[0-9]{1,15}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submissions:
    """What submitters may do with builds."""

    store: Store
    lifecycle: Lifecycle
    bells: Bells
    logs: Logs
    clock: Clock
    entropy: Entropy
    waiting: waiting.WaitingPolicy
    outlooks: Outlooks
    vault: Vault

    async def submit(self, principal: Principal, request: Submit) -> BuildView:
        """Queue a build, or return the one that was queued with this key.

        Raises:
            KeyReused: the key belongs to another request.
            InvalidRequest: the context was not uploaded for the project.
            SecretArgument: a build argument looks like a secret.
            TooLarge: the secrets are.
        """
        require_project(principal, request.project, request.environment)
        if self.bells.draining:
            raise Draining("this control plane is stopping", retry_after_ms=DRAIN_RETRY_MS)
        request = _with_platforms(request)
        if request.plan.scan == "gate":
            hint = "leave it at report, or off"
            raise PlanUnsupported(
                "nothing here scans images, so no scan can be waited for", hint=hint
            )
        if request.plan.build_args and not request.secret_args:
            await asyncio.to_thread(require_no_secret, request.plan.build_args)
        request, secrets = _without_secrets(request)
        build_id, now, by = self.entropy.id("b_"), self.clock.now(), name_of(principal)
        # Whoever will take it is woken while it is being stored, so that both share one commit.
        for part in parts_of(request):
            self.bells.offer(wanted_by(part, build_id))
        stored, changed = await self.store.write(
            lambda ledger: self._submit(ledger, build_id, request, secrets, by, now)
        )
        announce(self.bells, *changed)
        return view_of(stored)

    def _submit(
        self,
        ledger: Ledger,
        build_id: str,
        request: Submit,
        secrets: Mapping[str, bytes],
        by: str,
        now: datetime,
    ) -> tuple[StoredBuild, Sequence[StoredBuild]]:
        """Return the build, and all builds that changed with it."""
        known = request.key and ledger.build_by_key(request.project, request.key)
        if known:
            if known.submit != request or not self._has_secrets(known, secrets):
                detail = f"the key {request.key!r} was used for {known.id}, another request"
                raise KeyReused(detail, hint="use a new key for a new request")
            return known, ()
        if ledger.context(request.project, request.context.digest) != request.context:
            detail = f"the context {request.context.digest} was not uploaded to {request.project}"
            raise InvalidRequest(detail, hint="offer it first: POST /api/contexts")
        ledger.save_context(request.project, request.context, now)
        replaced = self._replace(ledger, build_id, request, now)
        parts = parts_of(request)
        _require_room(ledger, request.project, len(parts))
        project, place = place_for(ledger, request.project, request.environment, now)
        new = StoredBuild(
            build=Build(id=build_id),
            sequence=0,
            submit=request,
            trusted=project.trusted,
            created_at=now,
            queued_since=now,
            secrets_mac=self.vault.mac(build_id, secrets) if secrets else None,
            submitted_by=by,
            preview=place.preview,
            peak_bytes=ledger.last_peak(request.project),
        )
        facts = all_facts(ledger, now)
        if len(parts) == 1:
            added = self._queue(ledger, new, secrets, facts)
            added = consider_here(self.lifecycle, self.waiting, ledger, added, facts, now)
            return added, [added, *replaced]
        family = self._add_family(ledger, new, parts, secrets, facts)
        changed = [
            consider_here(self.lifecycle, self.waiting, ledger, child, facts, now)
            for child in family
        ]
        return ledger.build(build_id) or new, [*changed, *replaced]

    def _queue(
        self,
        ledger: Ledger,
        new: StoredBuild,
        secrets: Mapping[str, bytes],
        facts: Sequence[RunnerFacts],
    ) -> StoredBuild:
        """Add a build that a runner will take, with its secrets and its first event."""
        added = ledger.add_build(new)
        ledger.add_secrets(added.id, self.vault.lock(added.id, secrets))
        wanted = wanted_of(added)
        # Whoever was not asked for is no news to who did not ask.
        rejections, _ = explain((one for one in facts if asked_for(one, wanted)), wanted)
        self.lifecycle.record(ledger, added, Queued(cursor="", rejections=rejections))
        return added

    def _add_family(
        self,
        ledger: Ledger,
        new: StoredBuild,
        parts: Sequence[Submit],
        secrets: Mapping[str, bytes],
        facts: Sequence[RunnerFacts],
    ) -> Sequence[StoredBuild]:
        """Add a parent and its children, and return these."""
        children = tuple(
            Child(id=child_id(new.id, number), platform=part.plan.platform or "")
            for number, part in enumerate(parts, 1)
        )
        parent = ledger.add_build(replace(new, build=Parent(id=new.id, children=children)))
        self.lifecycle.record(ledger, parent, Queued(cursor=""))
        return [
            self._queue(
                ledger,
                replace(
                    new, build=Build(id=child.id), submit=part, parent=new.id, secrets_mac=None
                ),
                secrets,
                facts,
            )
            for child, part in zip(children, parts, strict=True)
        ]

    def _replace(
        self, ledger: Ledger, build_id: str, request: Submit, now: datetime
    ) -> Sequence[StoredBuild]:
        """End the older builds of the group, in the same transaction: never two are wanted."""
        if request.supersedes is None:
            return ()
        group = ledger.open_in_group(request.project, request.supersedes)
        older = [stored for stored in group if stored.submit.environment == request.environment]
        wish = Cancel("a newer build", f"replaced by {build_id}")
        return [self.lifecycle.apply(ledger, stored, wish, now) for stored in older]

    def _has_secrets(self, known: StoredBuild, secrets: Mapping[str, bytes]) -> bool:
        """Say whether a build was submitted with these values, which are not kept to compare."""
        if known.secrets_mac is None:
            return not secrets
        return hmac.compare_digest(known.secrets_mac, self.vault.mac(known.id, secrets))

    async def cancel(
        self, principal: Principal, build_id: str, request: CancelRequest
    ) -> BuildView:
        """Ask for a build to end."""
        by = "the owner" if isinstance(principal, Owner) else "the project"
        now = self.clock.now()

        def operation(ledger: Ledger) -> StoredBuild:
            stored = visible(ledger, principal, build_id)
            require_project(principal, stored.submit.project, stored.submit.environment)
            command = Cancel(by, request.reason[:1000])
            return self.lifecycle.apply(ledger, stored, command, now)

        stored = await self.store.write(operation)
        announce(self.bells, stored)
        return view_of(stored)

    async def show(self, principal: Principal, build_id: str) -> BuildView:
        """Return one build, with how it looks for it in the queue and the size of its log."""

        now = self.clock.now()

        def operation(ledger: Ledger) -> tuple[StoredBuild, Outlook, str | None]:
            stored = visible(ledger, principal, build_id)
            return stored, self.outlooks.of(ledger, stored, now), _step(ledger, stored)

        stored, outlook, step = await self.store.read(operation)
        size = self.logs.size(stored.id, stored.build.fence)
        return view_of(stored, outlook=outlook, log_bytes=size, step=step)

    async def page(
        self,
        principal: Principal,
        project: str | None,
        limit: int,
        after: str | None,
        *,
        mine: bool = False,
        children: bool = False,
    ) -> BuildPage:
        """Return builds, newest first, with how far they are: in the queue, in their steps."""
        holder = require_submitter(principal)
        environment = None
        if isinstance(holder, ProjectHolder):
            project, environment = project or holder.project, holder.environment
            require_view(holder, project)
        check_limit(limit)
        if after is not None and not _AFTER.match(after):
            raise InvalidRequest("after is what `next` said")
        before = int(after) if after else None
        by, now = name_of(principal) if mine else None, self.clock.now()

        def operation(ledger: Ledger) -> BuildPage:
            page = ledger.builds_page(
                project, limit, before, by=by, environment=environment, children=children
            )
            following = str(page[-1].sequence) if len(page) == limit else None
            outlooks = self.outlooks.of_all(ledger, page, now)
            views = [
                view_of(stored, outlook=outlooks.get(stored.id), step=_step(ledger, stored))
                for stored in page
            ]
            return BuildPage(builds=tuple(views), next=following)

        return await self.store.read(operation)


def _require_room(ledger: Ledger, project: str, more: int) -> None:
    """Return if so many more builds of the project may wait.

    Raises:
        QueueFull: as many as may wait already, of the project or of all.
    """
    rest = "or add a runner: pierhead add NAME --builds"
    if ledger.queue_length(project) + more > QUEUE_OF_PROJECT_MAX:
        detail = f"{QUEUE_OF_PROJECT_MAX} builds of {project} wait already, as many as may"
        end_them = f"pierhead builds cancel --project {project} --waiting"
        hint = f"wait, cancel them ({end_them}), {rest}"
        raise QueueFull(detail, hint=hint, retry_after_ms=QUEUE_RETRY_MS)
    if ledger.queue_length() + more > QUEUE_MAX:
        detail = f"{QUEUE_MAX} builds wait already"
        hint = f"wait, cancel some of them (pierhead builds ls), {rest}"
        raise QueueFull(detail, hint=hint, retry_after_ms=QUEUE_RETRY_MS)


def _step(ledger: Ledger, stored: StoredBuild) -> str | None:
    """Return what a build that runs is at."""
    if stored.build.state is not State.LEASED:
        return None
    step = running_step(ledger, stored)
    return step.name if step else None


def visible(ledger: Ledger, principal: Principal, build_id: str) -> StoredBuild:
    """Return the build that an id, a prefix of one, or `@` means, if the principal may see it.

    Raises:
        NotFound: there is none, or it is another project's.
        InvalidRequest: the prefix fits more than one.
    """
    holder, project, environment = require_submitter(principal), None, None
    if isinstance(holder, ProjectHolder):
        project, environment = holder.project, holder.environment
    exact = ledger.build(build_id)
    if (
        exact is not None
        and project in {None, exact.submit.project}
        and environment in {None, exact.submit.environment}
    ):
        return exact
    candidates = ledger.builds_with_prefix(build_id, project, environment)
    if len(candidates) > 1:
        names = ", ".join(stored.id for stored in candidates)
        hint = "type more of the id"
        raise InvalidRequest(f"{build_id} fits more than one build: {names}", hint=hint)
    if not candidates:
        raise NotFound(f"there is no build {build_id}", hint="list them: pierhead builds ls")
    return candidates[0]


def _with_platforms(request: Submit) -> Submit:
    """Return the request with each platform once, in its one spelling; a single one in the plan.

    Raises:
        PlanUnsupported: the plan names one, and the request others.
    """
    wanted = tuple(dict.fromkeys(normalise_platform(*p.split("/")) for p in request.platforms))
    own = request.plan.platform and normalise_platform(*request.plan.platform.split("/"))
    if own and wanted not in {(), (own,)}:
        raise PlanUnsupported(
            f"the plan is for {own}, and the build for {', '.join(wanted)}",
            hint="leave the plan's platform out",
        )
    if len(wanted) > 1:
        return msgspec.structs.replace(request, platforms=wanted)
    plan = msgspec.structs.replace(request.plan, platform=next(iter(wanted), own))
    return msgspec.structs.replace(request, plan=plan, platforms=wanted)


def parts_of(request: Submit) -> Sequence[Submit]:
    """Return what runners build of a request: one build for each of several platforms.

    What is there once is the parent's: the key, the tags, and the group.
    """
    if len(request.platforms) < 2:
        return [request]
    part = msgspec.structs.replace(request, platforms=(), key=None, tags=(), supersedes=None)
    plans = [msgspec.structs.replace(part.plan, platform=one) for one in request.platforms]
    return [msgspec.structs.replace(part, plan=plan) for plan in plans]


def _without_secrets(request: Submit) -> tuple[Submit, Mapping[str, bytes]]:
    """Take the values out of a request, and leave their names in its plan."""
    size, names = sum(map(len, request.secrets.values())), tuple(sorted(request.secrets))
    if size > SECRETS_BYTES_MAX:
        limit = SECRETS_BYTES_MAX // 1024
        detail = f"the secrets are {size} bytes together; at most {limit} KiB are taken"
        raise TooLarge(detail, hint="give what is large and not secret with the context")
    if request.plan.secrets not in {(), names}:
        detail = "the plan names other secrets than those that came with it"
        raise InvalidRequest(detail, hint="leave the plan's secrets out: the router writes them")
    plan = msgspec.structs.replace(request.plan, secrets=names)
    return msgspec.structs.replace(request, plan=plan, secrets={}), request.secrets
