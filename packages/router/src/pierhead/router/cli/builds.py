"""`pierhead builds`: look at builds, follow them, end them."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import typer
from msgspec import Meta

from pierhead.protocol.build import (
    FINAL_STATES,
    BuildPage,
    BuildView,
    CancelRequest,
    PlatformWhy,
    Rerun,
    Why,
)
from pierhead.protocol.cli.given import PROGRESS, AsJson, Limit, Url, formed, one_of
from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import (
    OK,
    USAGE,
    LogLines,
    about,
    columns,
    duration,
    fail,
    give,
    give_json,
    in_line,
    nth,
    tell,
)
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.ids import ProjectName, ReplayKey
from pierhead.protocol.result import Envelope
from pierhead.protocol.units import counted
from pierhead.router.cli.ending import cancel_of
from pierhead.router.cli.follow import Story, events, follow, proof_text
from pierhead.router.cli.interrupt import attend, look_on
from pierhead.router.cli.once import at_hand, control_plane
from pierhead.router.cli.submitting import submitted
from pierhead.router.cli.unwritten import saying_what_is_there

T = TypeVar("T")
# With its stage, when there are several: "[2/3] 6/9".
_STEP_NUMBER: Final = re.compile(r"(?:\[\d+/\d+\] )?\d+/\d+")
app = typer.Typer(add_completion=False)
BuildName = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=r"^(@|[A-Za-z0-9_-]+)\Z",  # b_7f3k, or b_7f3k-2 of one platform
        description="the id of a build, the beginning of one, or @ for the latest",
        examples=["@"],
    ),
]
Id = Annotated[
    str,
    typer.Argument(
        help="Id, the beginning of one, or @ for the latest", callback=formed(BuildName)
    ),
]
Project = Annotated[
    str | None, typer.Option(help="Only of one project", callback=formed(ProjectName))
]
Mine = Annotated[bool, typer.Option("--mine", help="Only what was submitted with your token")]


@app.callback(invoke_without_command=True)
def main(context: typer.Context) -> None:
    """Look at builds, follow them, end them. Alone: list the newest."""
    if context.invoked_subcommand is None:
        list_builds()


@app.command("ls")
def list_builds(
    project: Project = None,
    mine: Mine = False,
    limit: Limit = 20,
    children: Annotated[
        bool, typer.Option("--children", help="Each platform's build of those for several, too")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """List builds, newest first."""
    page = _ask(
        url,
        lambda client: client.builds(project=project, limit=limit, mine=mine, children=children),
    )
    if as_json:
        give_json(page)
        return
    now = datetime.now(UTC)  # noqa: TID251 - what people see is real time
    rows: list[tuple[str, ...]] = [("ID", "PROJECT", "FOR", "STATE", "WHERE", "AGE")]
    rows += [row_of(view, now) for view in page.builds]
    for line in columns(rows):
        give(line)


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
        "log": counted(view.log_bytes, "byte")
        + ("" if view.log_complete is not False else ", not whole"),
    }
    if view.children:
        rows["log"] = "of each platform: pierhead builds log " + view.children[0].id
    if view.parent:
        rows["image"] = f"with that of {view.parent}"
    if view.result and view.result.failure:
        rows["failure"] = f"{view.result.failure.cause}: {view.result.failure.message}"
    for name, value in rows.items():
        give(f"{name:10} {value}")
    images = view.result.platforms if view.result else ()
    digests = {image.platform: image.manifest_digest for image in images}
    for child in view.children:
        said = f"{child.platform:16} {child.id}   {child.state}   "
        give(f"{said}{digests.get(child.platform, '')}".rstrip())


@app.command()
def log(build_id: Id, url: Url = None) -> None:
    """Print the log: into a file or a pipe as it is stored, on a terminal what cannot harm it.

    On a terminal colours are shown, and every other control character is written out. Of a build
    for several platforms it is one log after the other, each line with its platform.
    """
    write = LogLines(sys.stdout) if sys.stdout.isatty() else sys.stdout.buffer

    async def read(client: RouterClient) -> None:
        view = await client.build(build_id)
        for child in view.children:
            mark = f"{child.platform}  ".encode()
            whole = b"".join([part async for part in _log(client, child.id)])
            for line in whole.rstrip(b"\n").split(b"\n"):
                write.write(mark + line + b"\n")
        if not view.children:
            async for part in _log(client, view.id):
                write.write(part)
        write.flush()

    _ask(url, read)


async def _log(client: RouterClient, build_id: str) -> AsyncIterator[bytes]:
    offset = 0
    while data := await client.log(build_id, offset=offset):
        yield data
        offset += len(data)


@app.command()
def watch(
    build_id: Id,
    progress: Annotated[
        str, typer.Option(help="plain is the log, auto the steps", callback=one_of(*PROGRESS))
    ] = "plain",
    as_json: AsJson = False,
    url: Url = None,
) -> int:
    """Follow a build: its log from the first byte, then live."""

    async def run() -> int:
        async with at_hand(find_place(url)) as place, place.client() as client:
            view = await client.build(build_id)
            shown = Story(view.project, quiet=progress == "quiet", raw=progress == "plain")
            story = follow(client, view.id, shown, as_json=as_json)
            async with saying_what_is_there(client, view.id, lasts=place.lasts):
                return await look_on(view.id, story, kept=place.lasts)

    return asyncio.run(run())


@app.command()
def why(build_id: Id, as_json: AsJson = False, url: Url = None) -> None:
    """Say which runners do not take a build, and what happens next."""

    async def both(client: RouterClient) -> tuple[BuildView, Why]:
        view = await client.build(build_id)
        return view, await client.why(view.id)

    view, found = _ask(url, both)
    if as_json:
        give_json(found)
        return
    for one in found.platforms:
        _give_why(view.project, one, one.build or view.id)
    if not found.platforms:
        _give_why(view.project, found, view.id)


def _give_why(project: str, found: Why | PlatformWhy, build_id: str) -> None:
    give(f"{project} wants {found.wants}")
    for rejection in found.rejections:
        give(f"  {rejection.runner:12} {rejection.reason}")
    for name in found.eligible:
        give(f"  {name:12} can take it")
    anyway = f"build it here anyway: pierhead builds run-here {build_id}"
    said = [found.verdict, _queue(found), anyway if found.may_run_here else ""]
    give(f"-> {'.  '.join(filter(None, said))}")


def _queue(found: Why | PlatformWhy) -> str:
    """Return where a build stands in the queue, and when it is likely to begin."""
    if found.position is None:
        return ""
    seconds = found.expected_wait_seconds
    begins = f", begins in {about(seconds)}" if seconds is not None else ""
    return f"{nth(found.position)} in the queue{begins}"


def _unproven(view: BuildView) -> str:
    """Say how a build ended of which no runner said that it stopped."""
    if view.started_at is None:
        return "cancelled before it began"
    if view.children:  # each platform has a proof of its own, or had ended before
        return "cancelled"
    return f"cancelled; {view.runner or 'its runner'} did not say what is left of it there"


@app.command()
def cancel(
    build_id: Annotated[
        str | None,
        typer.Argument(
            help="Id, the beginning of one, or @ for the latest", callback=formed(BuildName)
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Builds of this project", callback=formed(ProjectName))
    ] = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="With --project: all that wait")
    ] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="With --project: all that wait or run")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    as_json: AsJson = False,
    url: Url = None,
) -> int:
    """End a build, and wait until nothing of it is left; or end those of a project."""
    if build_id is not None and project is None and not (waiting or all_):
        return _cancel_one(build_id, as_json=as_json, url=url)
    if build_id is not None or project is None or waiting == all_:
        hint = "pierhead builds cancel ID, or pierhead builds cancel --project NAME --waiting"
        raise fail("name one build, or a project with --waiting or --all", hint, USAGE)
    ended = _ask(
        url, lambda client: cancel_of(client, project, running=all_, yes=yes, quiet=as_json)
    )
    if as_json:
        give_json(BuildPage(builds=ended))
    return OK


def _cancel_one(build_id: str, *, as_json: bool, url: str | None) -> int:
    async def run(client: RouterClient) -> BuildView:
        view = await client.cancel(build_id, CancelRequest())
        if view.state not in FINAL_STATES and not as_json:
            tell(f"cancelling on {view.runner} ... ", end="")
        async for _ in events(client, view.id):
            pass
        return await client.build(view.id)

    view = _ask(url, run)
    if as_json:
        give_json(view)
        return OK
    if view.state != "cancelled":
        hint = f"pierhead builds show {view.id}"
        raise fail(f"{view.id} had {view.state} before it could be cancelled", hint)
    tell(proof_text(view.result or Envelope(outcome="cancelled")) or _unproven(view))
    return OK


@app.command()
def rerun(
    build_id: Id,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait; print the id")] = False,
    key: Annotated[
        str | None, typer.Option(help="The same key is the same build", callback=formed(ReplayKey))
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
) -> int:
    """Build again: the same plan, the same context."""

    request = Rerun(key=f"cli-{os.urandom(16).hex()}" if key is None else key)

    async def run() -> int:
        async with (
            control_plane(find_place(url), stays=detach) as place,
            place.client() as client,
        ):
            view = await submitted(lambda: client.rerun(build_id, request))
            if detach:
                (give_json if as_json else lambda one: give(one.id))(view)
                return OK
            story = follow(client, view.id, Story(view.project), as_json=as_json)
            async with saying_what_is_there(client, view.id, lasts=place.lasts):
                return await attend(client, view.id, story, may_detach=place.lasts)

    return asyncio.run(run())


@app.command("run-here")
def run_here(build_id: Id, as_json: AsJson = False, url: Url = None) -> None:
    """Let the control plane's own machine take a build that waits for others."""
    view = _ask(url, lambda client: client.run_here(build_id))
    if as_json:
        give_json(view)
        return
    tell(f"{view.id} is built here as soon as this machine is free for it")


def row_of(view: BuildView, now: datetime) -> tuple[str, ...]:
    """Return a build as a row of the table."""
    wanted_for = (view.supersedes or "").removeprefix(f"{view.project}:") or ", ".join(view.tags)
    if view.parent and view.plan:
        wanted_for = view.plan.platform or ""
    age = now - datetime.fromisoformat(view.created_at)
    return (
        view.id,
        view.project,
        wanted_for or "-",
        _state(view),
        view.runner or "-",
        duration(max(0.0, age.total_seconds()), whole=True),
    )


def _state(view: BuildView) -> str:
    built = sum(child.state == "succeeded" for child in view.children)
    match view.state:
        case "queued":
            return _waiting(view)
        case "leased" if view.children and not view.cancel_requested:
            return f"{built} of {len(view.children)} built"
        case "leased":
            number = _STEP_NUMBER.match(view.step or "")
            at = f" {number[0]}" if number and view.phase == "building" else ""
            return "cancelling" if view.cancel_requested else f"{view.phase or 'starting'}{at}"
        case "failed" if view.result and view.result.failure:
            return f"failed: {view.result.failure.cause}"
        case "cancelled" if (view.cancel_reason or "").startswith("replaced by "):
            return "cancelled: replaced"
        case state:
            return state


def _waiting(view: BuildView) -> str:
    """Return how a build waits; what for only if nobody knows how long."""
    place, seconds = view.position, view.expected_wait_seconds
    if place is None and seconds is None:
        return "waiting"
    said = f"waiting, {in_line(place, seconds)}"
    return f"{said}: {view.waits_for}" if seconds is None and view.waits_for else said


def _ask(url: str | None, call: Callable[[RouterClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with at_hand(find_place(url)) as place, place.client() as client:
            return await call(client)

    return asyncio.run(run())
