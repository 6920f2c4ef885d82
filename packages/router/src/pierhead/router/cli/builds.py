"""`pierhead builds`: look at builds, follow them, end them."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import typer

from pierhead.protocol.build import FINAL_STATES, BuildView, CancelRequest, Rerun
from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import OK, fail, give, give_json, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.result import Envelope
from pierhead.router.cli.follow import Story, events, follow, proof_text
from pierhead.router.cli.interrupt import attend, look_on

T = TypeVar("T")
SUBMIT_SECONDS: Final = 60.0
app = typer.Typer(no_args_is_help=True, add_completion=False)
Id = Annotated[str, typer.Argument(help="Id, the beginning of one, or @ for the latest")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON")]
Url = Annotated[str | None, typer.Option(help="Control plane")]


@app.command("ls")
def list_builds(
    project: Annotated[str | None, typer.Option(help="Only of one project")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List builds, newest first."""
    page = _ask(url, lambda client: client.builds(project=project, limit=limit))
    if as_json:
        give_json(page)
        return
    give(f"{'ID':12} {'PROJECT':20} {'STATE':30} {'WHERE':12} CREATED")
    for view in page.builds:
        where = view.runner or "-"
        give(f"{view.id:12} {view.project:20} {_state(view):30} {where:12} {view.created_at}")


@app.command()
def show(build_id: Id, as_json: AsJson = False, url: Url = None) -> None:
    """Show one build."""
    view = _ask(url, lambda client: client.build(build_id))
    if as_json:
        give_json(view)
        return
    rows = {
        "id": view.id,
        "project": view.project,
        "state": _state(view),
        "where": view.runner or "-",
        "attempts": str(view.attempts),
        "image": view.reference or "-",
        "log": f"{view.log_bytes} bytes"
        + ("" if view.log_complete is not False else ", not whole"),
    }
    if view.result and view.result.failure:
        rows["failure"] = f"{view.result.failure.cause}: {view.result.failure.message}"
    for name, value in rows.items():
        give(f"{name:10} {value}")


@app.command()
def log(build_id: Id, url: Url = None) -> None:
    """Print the log as it is stored."""

    async def read(client: RouterClient) -> None:
        offset = 0
        while data := await client.log(build_id, offset=offset):
            sys.stdout.buffer.write(data)
            offset += len(data)
        sys.stdout.buffer.flush()

    _ask(url, read)


@app.command()
def watch(
    build_id: Id,
    raw: Annotated[bool, typer.Option("--log", help="The whole log, not only the steps")] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> int:
    """Follow a build: its log from the first byte, then live."""

    async def run(client: RouterClient) -> int:
        view = await client.build(build_id)
        story = follow(client, view.id, Story(view.project, raw=raw), as_json=as_json)
        return await look_on(view.id, story)

    return _ask(url, run)


@app.command()
def why(build_id: Id, as_json: AsJson = False, url: Url = None) -> None:
    """Say which runners do not take a build, and what happens next."""
    found = _ask(url, lambda client: client.why(build_id))
    if as_json:
        give_json(found)
        return
    give(f"wants {found.wants}")
    for rejection in found.rejections:
        give(f"  {rejection.runner:12} {rejection.reason}")
    for name in found.eligible:
        give(f"  {name:12} can take it")
    give(f"-> {found.verdict}")


@app.command()
def cancel(build_id: Id, as_json: AsJson = False, url: Url = None) -> int:
    """End a build, and wait until nothing of it is left."""

    async def run(client: RouterClient) -> BuildView:
        view = await client.cancel(build_id, CancelRequest())
        if view.state not in FINAL_STATES and not as_json:
            tell(f"cancelling on {view.runner} ...")
        async for _ in events(client, view.id):
            pass
        return await client.build(view.id)

    view = _ask(url, run)
    if as_json:
        give_json(view)
        return OK
    if view.state != "cancelled":
        raise fail(f"{view.id} had {view.state} before it could be cancelled")
    give(f"cancelled{proof_text(view.result or Envelope(outcome='cancelled'))}")
    return OK


@app.command()
def rerun(
    build_id: Id,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait; print the id")] = False,
    key: Annotated[str | None, typer.Option(help="The same key is the same build")] = None,
    as_json: AsJson = False,
    url: Url = None,
) -> int:
    """Build again: the same plan, the same context."""

    async def run(client: RouterClient) -> int:
        request = Rerun(key=key or f"cli-{os.urandom(16).hex()}")
        view = await patiently(lambda: client.rerun(build_id, request), SUBMIT_SECONDS)
        if detach:
            (give_json if as_json else lambda one: give(one.id))(view)
            return OK
        story = follow(client, view.id, Story(view.project), as_json=as_json)
        return await attend(client, view.id, story, may_detach=True)

    return _ask(url, run)


@app.command("run-here")
def run_here(build_id: Id, as_json: AsJson = False, url: Url = None) -> None:
    """Let the control plane's own machine take a build that waits for others."""
    view = _ask(url, lambda client: client.run_here(build_id))
    if as_json:
        give_json(view)
        return
    tell(f"{view.id} is built here as soon as this machine is free for it")


def _state(view: BuildView) -> str:
    if view.state == "queued":
        return "waiting" + (f", {view.position}." if view.position else "")
    if view.state == "leased":
        return "cancelling" if view.cancel_requested else view.phase or "starting"
    return view.state


def _ask(url: str | None, call: Callable[[RouterClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with find_place(url).client() as client:
            return await call(client)

    return asyncio.run(run())
