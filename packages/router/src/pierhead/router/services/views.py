"""From stored things to what the wire shows of them."""

from datetime import datetime

from pierhead.protocol.build import BuildView, ChildBuild
from pierhead.protocol.ids import BuildId
from pierhead.protocol.project import EnvironmentView, ProjectView, TokenView
from pierhead.protocol.runner import RunnerView
from pierhead.router.domain.credential import Credential
from pierhead.router.domain.matching import RunnerFacts
from pierhead.router.domain.parent import Parent
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.projects import StoredEnvironment, StoredProject
from pierhead.router.services.outlook import Outlook


def written(at: datetime) -> str:
    """Return a time as the wire writes it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rfc3339(at: datetime | None) -> str | None:
    """Return a time as the wire writes it, if there is one."""
    return written(at) if at else None


def view_of(
    stored: StoredBuild,
    *,
    outlook: Outlook | None = None,
    log_bytes: int = 0,
    step: str | None = None,
) -> BuildView:
    """Return a build as its submitter sees it."""
    build, looks = stored.build, outlook or Outlook()
    children = build.children if isinstance(build, Parent) else ()
    return BuildView(
        id=BuildId(build.id),
        project=stored.submit.project,
        environment=stored.submit.environment,
        state=build.state.value,
        created_at=written(stored.created_at),
        tags=stored.submit.tags,
        phase=build.phase,
        position=looks.place,
        expected_wait_seconds=looks.wait_seconds,
        waits_for=looks.waits_for,
        step=step,
        runner=stored.last_runner,
        attempts=build.attempts or (stored.envelope.attempts if stored.envelope else 0),
        fence=build.fence,
        cancel_requested=build.cancel is not None,
        cancelled_by=build.cancel.by if build.cancel else None,
        cancel_reason=build.cancel.reason if build.cancel else None,
        supersedes=stored.submit.supersedes,
        submitted_by=stored.submitted_by,
        started_at=rfc3339(stored.started_at),
        finished_at=rfc3339(build.finished_at),
        reference=stored.reference,
        result=stored.envelope,
        why_here=stored.here_reason or None,
        log_bytes=log_bytes,
        log_complete=stored.log_complete,
        plan=stored.submit.plan,
        parent=BuildId(stored.parent) if stored.parent else None,
        children=tuple(
            ChildBuild(id=BuildId(child.id), platform=child.platform, state=child.state.value)
            for child in children
        ),
    )


def runner_view(facts: RunnerFacts, builds: tuple[str, ...]) -> RunnerView:
    """Return a runner as `status` shows it."""
    return RunnerView(
        name=facts.name,
        here=facts.here,
        online=facts.online,
        stopped=facts.stopped,
        seen_at=rfc3339(facts.seen_at),
        builds=builds,
        capabilities=facts.capabilities,
    )


def project_view(project: StoredProject) -> ProjectView:
    """Return a project as its owner sees it."""
    return ProjectView(
        name=project.name,
        trusted=project.trusted,
        builds=project.builds,
        created_at=written(project.created_at),
    )


def environment_view(environment: StoredEnvironment) -> EnvironmentView:
    """Return an environment as it is listed."""
    return EnvironmentView(
        project=environment.project,
        name=environment.name,
        preview=environment.preview,
        builds=environment.builds,
        created_at=written(environment.created_at),
    )


def token_view(credential: Credential) -> TokenView:
    """Return a token as it is listed: without what it is."""
    terms = credential.terms
    return TokenView(
        id=credential.id,
        name=terms.name,
        project=terms.project,
        ability=terms.ability,
        environment=terms.environment,
        ends_with=credential.tail,
        created_at=written(credential.created_at),
        created_by=credential.created_by,
        expires_at=rfc3339(credential.expires_at),
        used_at=rfc3339(credential.used_at),
        revoked_at=rfc3339(credential.revoked_at),
    )
