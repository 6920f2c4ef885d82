"""Projects and their environments: made by name, listed by page, gone with all that they had."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pierhead.protocol.project import (
    EnvironmentPage,
    EnvironmentView,
    NewEnvironment,
    NewProject,
    ProjectPage,
    ProjectView,
    Removal,
)
from pierhead.router.domain.errors import InUse, InvalidRequest, LimitReached, NotFound
from pierhead.router.domain.token import (
    Principal,
    ProjectHolder,
    require_owner,
    require_submitter,
    require_view,
)
from pierhead.router.ports.contexts import ContextStore
from pierhead.router.ports.logs import Logs
from pierhead.router.ports.projects import Contents, StoredEnvironment, StoredProject
from pierhead.router.ports.store import Ledger, Store
from pierhead.router.ports.system import Clock
from pierhead.router.services.views import environment_view, project_view

PRODUCTION: Final = "production"
PAGE_MAX: Final = 200
# A submit makes what it names, so there has to be an end to it.
ENVIRONMENTS_MAX: Final = 1000
# Rows that go in one transaction: the writer is wanted by others too.
PURGE_ROWS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Projects:
    """What owners may do with projects and environments."""

    store: Store
    clock: Clock
    logs: Logs
    contexts: ContextStore

    async def page(self, principal: Principal, limit: int, after: str) -> ProjectPage:
        """Return the projects that the token may see, by name."""
        holder = require_submitter(principal)
        only = holder.project if isinstance(holder, ProjectHolder) else None
        check_limit(limit)
        found = await self.store.read(lambda ledger: ledger.projects_page(limit, after, only))
        following = found[-1].name if len(found) == limit else None
        return ProjectPage(projects=tuple(map(project_view, found)), next=following)

    async def show(self, principal: Principal, name: str) -> ProjectView:
        """Return one project."""
        require_view(principal, name)
        found = await self.store.read(lambda ledger: ledger.projects_page(1, "", name))
        if not found:
            raise no_project(principal, name)
        return project_view(found[0])

    async def add(self, principal: Principal, request: NewProject) -> ProjectView:
        """Make a project, or change one."""
        require_owner(principal)
        now = self.clock.now()

        def operation(ledger: Ledger) -> StoredProject:
            project, _ = place_for(ledger, request.name, PRODUCTION, now)
            project = replace(project, trusted=request.trusted)
            ledger.save_project(project)
            return project

        await self.store.write(operation)
        return await self.show(principal, request.name)

    async def remove(self, principal: Principal, name: str, *, plan: bool) -> Removal:
        """Remove a project with all that it had; `plan`: only say what would go.

        A removal that was cut short goes on when it is asked for again, or after a restart.

        Raises:
            InUse: builds of it wait or run.
        """
        require_owner(principal)
        now = self.clock.now()

        def operation(ledger: Ledger) -> Contents:
            project = ledger.project(name)
            if project is None:
                raise no_project(principal, name)
            contents = ledger.contents(name)
            if contents.open_builds:
                detail = f"builds of {name} that wait or run: {contents.open_builds}"
                raise InUse(detail, hint=f"end them: pierhead builds cancel --project {name} --all")
            if not plan:
                ledger.save_project(replace(project, removing=True))
                ledger.revoke_credentials(name, None, now)
            return contents

        contents = await (self.store.read(operation) if plan else self.store.write(operation))
        if not plan:
            await self.purge(name)
        return Removal(
            project=name,
            builds=contents.builds,
            images=contents.images,
            tags=contents.tags,
            environments=contents.environments,
            tokens=contents.tokens,
            done=not plan,
        )

    async def purge(self, name: str) -> None:
        """Delete what a project had that takes nothing any more."""
        await self.contexts.forget_project(name)
        more = True
        while more:
            more, builds = await self.store.write(
                lambda ledger: ledger.purge_project(name, PURGE_ROWS)
            )
            for build_id in builds:
                await self.logs.drop(build_id)

    async def finish_removals(self) -> None:
        """Go on with removals that a stop cut short."""
        for name in await self.store.read(lambda ledger: ledger.removing()):
            await self.purge(name)

    # Environments.

    async def environments(
        self, principal: Principal, project: str, limit: int, after: str
    ) -> EnvironmentPage:
        """Return the environments of a project, by name."""
        require_view(principal, project)
        check_limit(limit)

        def operation(ledger: Ledger) -> tuple[StoredEnvironment, ...]:
            if ledger.project(project) is None:
                raise no_project(principal, project)
            return tuple(ledger.environments_page(project, limit, after))

        found = await self.store.read(operation)
        following = found[-1].name if len(found) == limit else None
        return EnvironmentPage(environments=tuple(map(environment_view, found)), next=following)

    async def add_environment(
        self, principal: Principal, request: NewEnvironment
    ) -> EnvironmentView:
        """Make an environment, or change one."""
        require_owner(principal)
        now = self.clock.now()

        def operation(ledger: Ledger) -> StoredEnvironment:
            if ledger.project(request.project) is None:
                raise no_project(principal, request.project)
            _, found = place_for(ledger, request.project, request.name, now)
            changed = replace(found, preview=request.preview)
            ledger.save_environment(changed)
            return changed

        return environment_view(await self.store.write(operation))

    async def remove_environment(
        self, principal: Principal, project: str, name: str
    ) -> EnvironmentView:
        """Forget an environment and revoke its tokens; its builds stay in the project.

        Raises:
            InUse: builds of it wait or run.
            InvalidRequest: `production` is always there.
        """
        require_owner(principal)
        now = self.clock.now()

        def operation(ledger: Ledger) -> StoredEnvironment:
            found = ledger.environment(project, name)
            if found is None:
                hint = f"list them: pierhead projects env ls {project[:140]}"
                raise NotFound(f"there is no environment {name[:80]}", hint=hint)
            if name == PRODUCTION:
                hint = "remove the whole project: pierhead projects remove"
                raise InvalidRequest("every project has production", hint=hint)
            if count := ledger.open_builds(project, name):
                hint = (
                    f"end them, or all of the project: pierhead builds cancel --project {project}"
                )
                raise InUse(f"builds of {name} that wait or run: {count}", hint=f"{hint} --all")
            ledger.revoke_credentials(project, name, now)
            ledger.drop_environment(project, name)
            return found

        return environment_view(await self.store.write(operation))


def place_for(
    ledger: Ledger, project: str, environment: str, now: datetime
) -> tuple[StoredProject, StoredEnvironment]:
    """Return the project, and the environment in it; both are made when they are not there.

    An environment that nobody set up is a preview, except the first: unknown gets less trust.

    Raises:
        InUse: the project is being removed.
        LimitReached: it has as many environments as a project may have.
    """
    found = ledger.project(project)
    if found is None:
        found = StoredProject(name=project, trusted=True, created_at=now)
        ledger.save_project(found)
    if found.removing:
        raise InUse(f"the project {project} is being removed", hint="ask again in a moment")
    first = _environment_for(ledger, project, PRODUCTION, now)
    if environment == PRODUCTION:
        return found, first
    return found, _environment_for(ledger, project, environment, now)


def _environment_for(ledger: Ledger, project: str, name: str, now: datetime) -> StoredEnvironment:
    known = ledger.environment(project, name)
    if known is not None:
        return known
    _check_room(ledger, project)
    new = StoredEnvironment(project=project, name=name, preview=name != PRODUCTION, created_at=now)
    ledger.save_environment(new)
    return new


def check_limit(limit: int) -> None:
    """Raise `InvalidRequest` for a page that is none."""
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidRequest(f"limit is from 1 to {PAGE_MAX}")


def no_project(principal: Principal, name: str) -> NotFound:
    """Return the refusal of a name that no project has."""
    hint = f"make it: pierhead projects add {name[:140]}"
    if isinstance(principal, ProjectHolder):
        return NotFound(f"there is no project {name[:140]} for this token")
    return NotFound(f"there is no project {name[:140]}", hint=hint)


def _check_room(ledger: Ledger, project: str) -> None:
    if ledger.contents(project).environments >= ENVIRONMENTS_MAX:
        hint = f"remove some: pierhead projects env remove {project} NAME"
        raise LimitReached(f"{project} has {ENVIRONMENTS_MAX} environments", hint=hint)
