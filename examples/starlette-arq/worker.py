"""The arq worker of the platform: builds a deployment, keeps its log, and runs the image.

`arq worker.WorkerSettings` starts it, with PIERHEAD_URL and PIERHEAD_TOKEN in its environment.
"""

from datetime import timedelta
from typing import Any, assert_never

from deployments import Deployment

from pierhead.router import (
    BuildError,
    BuildFailedError,
    BuildRequest,
    DirectoryContext,
    Event,
    FellBack,
    Finished,
    ImageInfo,
    Log,
    Notice,
    Progress,
    Queued,
    Requeued,
    RoutedImageBuilder,
    RouterExecutor,
    Started,
    Step,
)


async def startup(ctx: dict[str, Any]) -> None:
    """Make the builder once, where the worker starts."""
    ctx["builder"] = RoutedImageBuilder(RouterExecutor.from_env())


def request_for(d: Deployment) -> BuildRequest:
    """Return what a deployment wants built. A newer push to the branch replaces an older one."""
    return BuildRequest(
        context=DirectoryContext(path=d.checkout),
        project=d.project,
        key=f"deployment-{d.id}",
        supersedes=f"{d.project}:{d.branch}",
    )


async def deploy(ctx: dict[str, Any], deployment_id: str) -> None:
    """Build and run one deployment. Aborting the job cancels this task, and so its build."""
    d: Deployment = ctx["deployments"].load(deployment_id)

    def record(event: Event) -> None:
        match event:
            case Log(data=data, offset=offset):
                d.log[offset:] = data
            case Queued(position=position, rejected=rejected):
                d.status, d.rejected = f"waiting, {position or 'soon'}", rejected
            case Started(runner=runner):
                d.status = f"building on {runner}"
                d.log.clear()
            case FellBack(reason=reason, to=to):
                d.status = f"building {to}: {reason}"
            case Requeued(reason=reason):
                d.status = f"waiting again: {reason}"
            case Step() | Progress() | Notice() | Finished():
                pass
            case _:
                assert_never(event)

    builder: RoutedImageBuilder = ctx["builder"]
    try:
        image = await builder.build(request_for(d), on_event=record)
    except BuildFailedError as error:
        return fail(d, (str(error), *error.failure.extract), error.hint)
    except BuildError as error:
        if error.retryable:
            d.status = f"trying again: {error}"
            await ctx["redis"].enqueue_job("deploy", d.id, _defer_by=30)
            return None
        return fail(d, (str(error),), error.hint)
    return await run(ctx, d, image)


def fail(d: Deployment, lines: tuple[str, ...], hint: str | None) -> None:
    """Show the user why there is no image."""
    d.status, d.error, d.hint = "failed", lines, hint


async def run(ctx: dict[str, Any], d: Deployment, image: ImageInfo) -> None:
    """Hand the image to whatever runs containers: by digest, with a password that ends."""
    builder: RoutedImageBuilder = ctx["builder"]
    d.credentials = await builder.pull_credentials(image, ttl=timedelta(minutes=10))
    d.image, d.port = image.reference, next(iter(image.config.exposed_ports), None)
    d.status = "running"


class WorkerSettings:
    """What `arq` reads."""

    functions = (deploy,)
    on_startup = startup
    allow_abort_jobs = True
