"""Projects and their tokens, and what the control plane says of itself."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pierhead.protocol.meta import (
    NewProject,
    ProjectPage,
    ProjectView,
    PullToken,
    PullTokenRequest,
    ServerCapabilities,
    TokenMade,
)
from pierhead.router.domain.errors import NotAllowed, NotFound
from pierhead.router.domain.token import (
    PROJECT_PREFIX,
    Owner,
    Principal,
    ProjectHolder,
    pull_token,
    require_owner,
    require_project,
    token_hash,
)
from pierhead.router.ports import Clock, Entropy, Ledger, Store, StoredProject
from pierhead.router.services.facts import all_facts
from pierhead.router.services.views import project_view, rfc3339, runner_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Projects:
    """What owners may do with projects."""

    store: Store
    clock: Clock
    entropy: Entropy
    host: str
    key: bytes

    async def page(self, principal: Principal) -> ProjectPage:
        """Return the projects that the token may see."""
        _require_submitter(principal)
        found = await self.store.read(lambda ledger: ledger.projects())
        mine = [
            project
            for project in found
            if isinstance(principal, Owner)
            or (isinstance(principal, ProjectHolder) and principal.project == project.name)
        ]
        return ProjectPage(projects=tuple(map(project_view, mine)))

    async def add(self, principal: Principal, request: NewProject) -> ProjectView:
        """Make a project, or change one."""
        require_owner(principal)
        now = self.clock.now()

        def operation(ledger: Ledger) -> StoredProject:
            new = StoredProject(name=request.name, trusted=request.trusted, created_at=now)
            project = replace(ledger.project(request.name) or new, trusted=request.trusted)
            ledger.save_project(project)
            return project

        return project_view(await self.store.write(operation))

    async def add_token(self, principal: Principal, name: str) -> TokenMade:
        """Make a token for a project."""
        require_owner(principal)
        token, now = PROJECT_PREFIX + self.entropy.secret(), self.clock.now()

        def operation(ledger: Ledger) -> None:
            if ledger.project(name) is None:
                hint = f"make it: pierhead projects add {name}"
                raise NotFound(f"there is no project {name}", hint=hint)
            ledger.add_token(token_hash(token), ProjectHolder(name), now)

        await self.store.write(operation)
        return TokenMade(token=token)

    async def add_pull_token(
        self, principal: Principal, name: str, request: PullTokenRequest
    ) -> PullToken:
        """Make a password that pulls from one repository for a while.

        Raises:
            NotFound: there is no such project for this token.
        """
        require_project(principal, name)
        if await self.store.read(lambda ledger: ledger.project(name)) is None:
            raise NotFound(f"there is no project {name}")
        ends = self.clock.now() + timedelta(seconds=request.ttl_seconds)
        whole = datetime.fromtimestamp(int(ends.timestamp()), UTC)  # as the token carries it
        return PullToken(
            registry=self.host,
            repository=name,
            username="pull",
            token=pull_token(self.key, name, whole),
            expires_at=rfc3339(whole) or "",
        )

    async def capabilities(self, principal: Principal) -> ServerCapabilities:
        """Return what this control plane can build, now."""
        _require_submitter(principal)
        now = self.clock.now()

        def operation(ledger: Ledger) -> ServerCapabilities:
            held: dict[str, list[str]] = {}
            for stored in ledger.leased():
                held.setdefault(stored.last_runner or "", []).append(stored.id)
            views = [
                runner_view(facts, tuple(held.get(facts.name, ())))
                for facts in all_facts(ledger, now)
            ]
            return ServerCapabilities(registry=self.host, runners=tuple(views))

        return await self.store.read(operation)


def _require_submitter(principal: Principal) -> None:
    """Raise `NotAllowed` for whoever never submits a build."""
    if not isinstance(principal, Owner | ProjectHolder):
        raise NotAllowed("this token may not do that")
