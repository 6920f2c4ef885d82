"""From stored things to what the wire shows of them."""

from datetime import datetime

from pierhead.protocol.build import BuildView
from pierhead.protocol.ids import BuildId
from pierhead.protocol.meta import ProjectView
from pierhead.protocol.runner import RunnerView
from pierhead.router.domain.matching import RunnerFacts
from pierhead.router.ports import StoredBuild, StoredProject


def rfc3339(at: datetime | None) -> str | None:
    """Return a time as the wire writes it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


def view_of(stored: StoredBuild, *, position: int | None = None, log_bytes: int = 0) -> BuildView:
    """Return a build as its submitter sees it."""
    build = stored.build
    created_at = rfc3339(stored.created_at)
    assert created_at is not None
    return BuildView(
        id=BuildId(build.id),
        project=stored.submit.project,
        state=build.state.value,
        created_at=created_at,
        tags=stored.submit.tags,
        phase=build.phase,
        position=position,
        runner=stored.last_runner,
        attempts=build.attempts,
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
    )


def runner_view(facts: RunnerFacts, builds: tuple[str, ...]) -> RunnerView:
    """Return a runner as `status` shows it."""
    return RunnerView(
        name=facts.name,
        here=facts.here,
        online=facts.online,
        seen_at=rfc3339(facts.seen_at),
        builds=builds,
        capabilities=facts.capabilities,
    )


def project_view(project: StoredProject) -> ProjectView:
    """Return a project as its owner sees it."""
    created_at = rfc3339(project.created_at)
    assert created_at is not None
    return ProjectView(
        name=project.name, trusted=project.trusted, builds=project.builds, created_at=created_at
    )
