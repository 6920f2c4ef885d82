"""Ends many builds of a project at once."""

import asyncio
import sys
from typing import Final

import typer

from pierhead.protocol.build import FINAL_STATES, BuildView, CancelRequest
from pierhead.protocol.cli.speak import USAGE, fail, tell
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.errors import LeaseLost
from pierhead.protocol.units import counted

_PAGE: Final = 200
_PATIENCE_SECONDS: Final = 60.0


async def cancel_of(
    client: RouterClient, project: str, *, running: bool, yes: bool, quiet: bool
) -> tuple[BuildView, ...]:
    """Cancel what waits of a project, and what runs if `running`; return what that ended.

    Newest first, so that none is begun only to be ended. What runs is asked to end, and not
    waited for.

    Raises:
        CommandFailed: nobody said that they should end.
    """
    wanted = {"queued", "leased"} if running else {"queued"}
    found = [view for view in await _all_of(client, project) if view.state in wanted]
    if found and not yes:
        await asyncio.to_thread(_confirm, project, found, running=running)
    ended = [view for one in found if (view := await _cancelled(client, one)) is not None]
    if not quiet:
        stopping = sum(view.state not in FINAL_STATES for view in ended)
        rest = f"; {counted(stopping, 'other')} stop now" if stopping else ""
        tell(f"{counted(len(ended) - stopping, 'build')} of {project} cancelled{rest}")
    return tuple(ended)


async def _all_of(client: RouterClient, project: str) -> list[BuildView]:
    found: list[BuildView] = []
    after = None
    while True:
        page = await client.builds(project=project, limit=_PAGE, after=after)
        found += page.builds
        if (after := page.next) is None:
            return found


async def _cancelled(client: RouterClient, view: BuildView) -> BuildView | None:
    """Return the build as it is then; none: it had ended by itself."""
    try:
        return await patiently(lambda: client.cancel(view.id, CancelRequest()), _PATIENCE_SECONDS)
    except LeaseLost:
        return None


def _confirm(project: str, found: list[BuildView], *, running: bool) -> None:
    waits = sum(view.state == "queued" for view in found)
    runs = f", {len(found) - waits} running" if running else ""
    tell(f"{counted(len(found), 'build')} of {project} would be cancelled: {waits} waiting{runs}")
    which = "--all" if running else "--waiting"
    again = f"pierhead builds cancel --project {project} {which} --yes"
    if not sys.stdin.isatty():
        raise fail("nobody was asked", again, USAGE)
    if not typer.confirm("cancel them?", err=True):
        raise fail("nothing was cancelled", again)
