"""Submitting, cancelling and finding builds."""

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pierhead.protocol.build import BuildPage, BuildView, CancelRequest, Queued, Why, WhyRequest
from pierhead.protocol.plan import SECRETS_BYTES_MAX, Submit
from pierhead.protocol.units import size
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
from pierhead.router.domain.matching import RunnerFacts, Wanted, explain
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
from pierhead.router.ports import Clock, Entropy, Ledger, Logs, Store, StoredBuild, Vault
from pierhead.router.services.bells import Bells
from pierhead.router.services.facts import all_facts, patience_of, wanted_by, wanted_of
from pierhead.router.services.lifecycle import Lifecycle, announce
from pierhead.router.services.projects import check_limit, is_preview, place_for
from pierhead.router.services.sweep import consider_here
from pierhead.router.services.views import view_of

# Every grant looks at the whole queue; with so many it still takes some milliseconds.
QUEUE_MAX: Final = 1000
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
        request = _for_one_platform(request)
        if request.plan.scan == "gate":
            hint = "leave it at report, or off"
            raise PlanUnsupported(
                "nothing here scans images, so no scan can be waited for", hint=hint
            )
        if not request.secret_args:
            require_no_secret(request.plan.build_args)
        request, secrets = _without_secrets(request)
        build_id, now, by = self.entropy.id("b_"), self.clock.now(), name_of(principal)
        # Whoever will take it is woken while it is being stored, so that both share one commit.
        self.bells.offer(wanted_by(request, build_id))
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
        if ledger.queue_length() >= QUEUE_MAX:
            hint = "wait, cancel some of them, or add a runner: pierhead add NAME --builds"
            detail = f"{QUEUE_MAX} builds wait already"
            raise QueueFull(detail, hint=hint, retry_after_ms=QUEUE_RETRY_MS)
        project = place_for(ledger, request.project, request.environment, now)
        added = ledger.add_build(
            StoredBuild(
                build=Build(id=build_id),
                sequence=0,
                submit=request,
                trusted=project.trusted,
                created_at=now,
                queued_since=now,
                secrets_mac=self.vault.mac(build_id, secrets) if secrets else None,
                submitted_by=by,
                preview=is_preview(ledger, request.project, request.environment),
                peak_bytes=ledger.last_peak(request.project),
            )
        )
        ledger.add_secrets(build_id, self.vault.lock(build_id, secrets))
        facts = all_facts(ledger, now)
        rejections, _ = explain(facts, wanted_of(added))
        self.lifecycle.record(ledger, added, Queued(cursor="", rejections=rejections))
        added = consider_here(self.lifecycle, self.waiting, ledger, added, facts, now)
        return added, [added, *replaced]

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
        """Return one build, with its place in the queue and the size of its log."""

        def operation(ledger: Ledger) -> tuple[StoredBuild, int | None]:
            stored = visible(ledger, principal, build_id)
            waiting_ids = [other.id for other in ledger.queued()]
            queued = stored.build.state is State.QUEUED and stored.id in waiting_ids
            return stored, waiting_ids.index(stored.id) + 1 if queued else None

        stored, position = await self.store.read(operation)
        size = self.logs.size(stored.id, stored.build.fence)
        return view_of(stored, position=position, log_bytes=size)

    async def page(
        self,
        principal: Principal,
        project: str | None,
        limit: int,
        after: str | None,
        *,
        mine: bool = False,
    ) -> BuildPage:
        """Return builds, newest first, with the places of those that wait."""
        holder = require_submitter(principal)
        environment = None
        if isinstance(holder, ProjectHolder):
            project, environment = project or holder.project, holder.environment
            require_view(holder, project)
        check_limit(limit)
        if after is not None and not _AFTER.match(after):
            raise InvalidRequest("after is what `next` said")
        before = int(after) if after else None
        by = name_of(principal) if mine else None

        def operation(ledger: Ledger) -> tuple[Sequence[StoredBuild], dict[str, int]]:
            places = {stored.id: place for place, stored in enumerate(ledger.queued(), 1)}
            page = ledger.builds_page(project, limit, before, by=by, environment=environment)
            return page, places

        found, places = await self.store.read(operation)
        following = str(found[-1].sequence) if len(found) == limit else None
        views = tuple(view_of(stored, position=places.get(stored.id)) for stored in found)
        return BuildPage(builds=views, next=following)

    async def why(self, principal: Principal, build_id: str) -> Why:
        """Say which runners do not take a build and what happens next."""
        now = self.clock.now()

        def operation(ledger: Ledger) -> Why:
            stored = visible(ledger, principal, build_id)
            facts, wanted = all_facts(ledger, now), wanted_of(stored)
            rejections, eligible = explain(facts, wanted)
            verdict = f"{stored.build.state}"
            if stored.build.state is State.QUEUED:
                patience = patience_of(stored)
                judged = waiting.judge(wanted, patience, facts, now=now, policy=self.waiting)
                verdict = _then(wanted, patience, facts, judged, self.waiting)
            elif stored.last_runner:
                verdict = f"{stored.build.state} on {stored.last_runner}"
            return Why(
                wants=_wants(wanted), rejections=rejections, eligible=eligible, verdict=verdict
            )

        return await self.store.read(operation)

    async def why_not(self, principal: Principal, request: WhyRequest) -> Why:
        """Say which runners would not take such a build and what would happen."""
        require_view(principal, request.project)
        now = self.clock.now()

        def operation(ledger: Ledger) -> Why:
            project = ledger.project(request.project)
            wanted = Wanted(
                build_id="",
                sequence=0,
                platform=request.platform,
                network=request.network,
                trusted=project is None or project.trusted,
                peak_bytes=ledger.last_peak(request.project),
            )
            patience = waiting.Patience(
                if_nobody=request.if_nobody,
                busy_for=timedelta(seconds=request.max_queue_wait_seconds),
                since=now,
            )
            facts = all_facts(ledger, now)
            judged = waiting.judge(wanted, patience, facts, now=now, policy=self.waiting)
            at_once_here = isinstance(judged, waiting.Here)
            rejections, eligible = explain(facts, replace(wanted, here_allowed=at_once_here))
            return Why(
                wants=_wants(wanted),
                rejections=rejections,
                eligible=eligible,
                verdict=_then(wanted, patience, facts, judged, self.waiting),
            )

        return await self.store.read(operation)


def _then(
    wanted: Wanted,
    patience: waiting.Patience,
    facts: Sequence[RunnerFacts],
    judged: waiting.Verdict,
    policy: waiting.WaitingPolicy,
) -> str:
    """Return what a verdict means in words, and what follows when the waiting is over."""
    said = _sentence(judged)
    if not isinstance(judged, waiting.Wait) or judged.until is None:
        return said
    later = waiting.judge(wanted, patience, facts, now=judged.until, policy=policy)
    if isinstance(later, waiting.Here):
        return f"{said}, then it is built here"
    return f"{said}, then it fails" if isinstance(later, waiting.NoHope) else said


def _wants(wanted: Wanted) -> str:
    memory = f", {size(wanted.peak_bytes)} memory (its last build)" if wanted.peak_bytes else ""
    secrets = ", its secrets" if wanted.secrets else ""
    preview = ", a preview" if wanted.preview else ""
    network = "no network" if wanted.network == "none" else "a network"
    return f"{wanted.platform or 'any platform'}{memory}, {network}{secrets}{preview}"


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
        raise InvalidRequest(f"{build_id} fits more than one build: {names}")
    if not candidates:
        raise NotFound(f"there is no build {build_id}", hint="list them: pierhead builds ls")
    return candidates[0]


def _for_one_platform(request: Submit) -> Submit:
    """Return the request with its one platform in the plan.

    Raises:
        PlanUnsupported: there are several.
    """
    wanted = {*request.platforms} | {request.plan.platform} - {None}
    if len(wanted) > 1:
        hint = f"submit one build for each of {', '.join(sorted(map(str, wanted)))}"
        raise PlanUnsupported("a build is for one platform", hint=hint)
    if not request.platforms:
        return request
    plan = msgspec.structs.replace(request.plan, platform=request.platforms[0])
    return msgspec.structs.replace(request, plan=plan)


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


def _sentence(judged: waiting.Verdict) -> str:
    match judged:
        case waiting.Wait(why, until):
            return f"waits: {why}" + (f" (until {until:%H:%M:%S} UTC)" if until else "")
        case waiting.Here(reason):
            return "is built on this machine" + (f": {reason}" if reason else "")
        case waiting.NoHope(_, detail):
            return f"fails: {detail}"
