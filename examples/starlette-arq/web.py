"""The platform's API: a push comes in, its deployment can be watched and aborted."""

from pathlib import Path
from typing import Any

from deployments import Deployment, Deployments
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def web(deployments: Deployments, queue: Any) -> Starlette:
    """Return the application. `queue` is arq's pool."""

    async def push(request: Request) -> Response:
        said = await request.json()
        d = deployments.add(said["project"], said["branch"], Path(said["checkout"]))
        await queue.enqueue_job("deploy", d.id, _job_id=d.id)
        return JSONResponse({"id": d.id}, 202)

    async def show(request: Request) -> Response:
        return JSONResponse(view(deployments.load(request.path_params["id"])))

    async def log(request: Request) -> Response:
        d = deployments.load(request.path_params["id"])
        return Response(bytes(d.log[int(request.query_params.get("offset", "0")) :]))

    async def abort(request: Request) -> Response:
        d = deployments.load(request.path_params["id"])
        await queue.abort_job(d.id)
        d.status = "aborted"
        return JSONResponse(view(d))

    return Starlette(
        routes=[
            Route("/deployments", push, methods=["POST"]),
            Route("/deployments/{id}", show),
            Route("/deployments/{id}/log", log),
            Route("/deployments/{id}", abort, methods=["DELETE"]),
        ]
    )


def view(d: Deployment) -> dict[str, Any]:
    """Return what people see of a deployment."""
    waits_for = [f"{one.runner}: {one.reason}" for one in d.rejected]
    shown = {"status": d.status, "image": d.image, "port": d.port, "error": d.error}
    return {**shown, "hint": d.hint, "waits_for": waits_for}
