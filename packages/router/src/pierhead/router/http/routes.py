"""The whole API on one screen: method, path, handler."""

from starlette.routing import Route

from pierhead.router.http.attempts import AttemptHandlers
from pierhead.router.http.builds import BuildHandlers
from pierhead.router.http.registry import RegistryHandlers
from pierhead.router.http.runners import ProjectHandlers, RunnerHandlers


def routes(
    builds: BuildHandlers,
    attempts: AttemptHandlers,
    runners: RunnerHandlers,
    projects: ProjectHandlers,
    registry: RegistryHandlers,
) -> list[Route]:
    """Return all routes. Who may call what is decided by the use case behind each."""
    build = "/api/builds/{build_id}"
    registry_methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return [
        # Anybody.
        Route("/api/meta", projects.meta, methods=["GET"]),
        Route("/api/runners/enroll", runners.enroll, methods=["POST"]),
        # Owner or project.
        Route("/api/capabilities", projects.capabilities, methods=["GET"]),
        Route("/api/uploads", builds.begin_upload, methods=["POST"]),
        Route("/api/uploads/{upload_id}", builds.upload_status, methods=["GET"]),
        Route("/api/uploads/{upload_id}", builds.upload_part, methods=["PATCH"]),
        Route("/api/builds", builds.submit, methods=["POST"]),
        Route("/api/builds", builds.page, methods=["GET"]),
        Route(build, builds.show, methods=["GET"]),
        Route(f"{build}/why", builds.why, methods=["GET"]),
        Route(f"{build}/events", builds.follow, methods=["GET"]),
        Route(f"{build}/logs", builds.log, methods=["GET"]),
        Route(f"{build}/cancel", builds.cancel, methods=["POST"]),
        Route("/api/projects", projects.page, methods=["GET"]),
        # Owner.
        Route("/api/projects", projects.add, methods=["POST"]),
        Route("/api/projects/{project:path}/tokens", projects.add_token, methods=["POST"]),
        Route("/api/runners", runners.add, methods=["POST"]),
        # Runner.
        Route("/api/runners/session", runners.session, methods=["PUT"]),
        Route("/api/runners/acquire", runners.acquire, methods=["POST"]),
        # Attempt.
        Route(f"{build}/plan", attempts.plan, methods=["GET"]),
        Route(f"{build}/context.tar.zst", attempts.context, methods=["GET"]),
        Route(f"{build}/heartbeat", attempts.heartbeat, methods=["POST"]),
        Route(f"{build}/signals", attempts.signals, methods=["GET"]),
        Route(f"{build}/logs", attempts.log, methods=["PATCH"]),
        Route(f"{build}/release", attempts.release, methods=["POST"]),
        Route(f"{build}/result", attempts.report, methods=["POST"]),
        # Registry.
        Route("/v2/token", registry.token, methods=["GET"]),
        Route("/v2/{path:path}", registry.dispatch, methods=registry_methods),
    ]
