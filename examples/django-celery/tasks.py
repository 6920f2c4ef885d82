"""The Celery tasks of the platform. Nothing here has an event loop, and nothing needs one."""

import os
from pathlib import Path
from typing import Any

from celery import shared_task
from deployments import Deployments

from pierhead.router import (
    BuildError,
    BuildFailedError,
    BuildRequest,
    DirectoryContext,
    Event,
    Log,
    RoutedImageBuilder,
    RouterExecutor,
    Started,
    blocking,
)

deployments = Deployments(Path(os.environ["PLATFORM_DATABASE"]))
builder = RoutedImageBuilder(RouterExecutor.from_env())


def request_for(deployment_id: int, d: dict[str, Any]) -> BuildRequest:
    """Return what a deployment wants built; a task that is run again finds the same build."""
    return BuildRequest(
        context=DirectoryContext(path=Path(d["checkout"])),
        project=d["project"],
        key=f"deployment-{deployment_id}",
    )


def record(deployment_id: int, event: Event) -> None:
    """Keep what a user wants to see."""
    match event:
        case Started(runner=runner):
            deployments.clear_log(deployment_id)
            deployments.change(deployment_id, status=f"building on {runner}")
        case Log(data=data, offset=offset):
            deployments.write_log(deployment_id, offset, data)


@shared_task(bind=True, max_retries=10, acks_late=True)
def deploy(self: Any, deployment_id: int) -> None:
    """Build one deployment, and note where its image is."""
    d = deployments.load(deployment_id)
    try:
        with blocking(builder) as b:
            image = b.build(
                request_for(deployment_id, d), on_event=lambda event: record(deployment_id, event)
            )
    except BuildFailedError as error:
        lines = "\n".join([str(error), *error.failure.extract])
        deployments.change(deployment_id, status="failed", error=lines, hint=error.hint)
        return
    except BuildError as error:
        if error.retryable:
            raise self.retry(exc=error, countdown=30) from error
        deployments.change(deployment_id, status="failed", error=str(error), hint=error.hint)
        return
    deployments.change(deployment_id, status="built", image=image.reference)
