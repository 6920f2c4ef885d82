"""`pierhead status`: one page."""

import asyncio
from collections.abc import Sequence

from pierhead.protocol.answers import StatusPage
from pierhead.protocol.build import BuildPage
from pierhead.protocol.cli.given import AsJson, Url
from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import give, give_json
from pierhead.protocol.meta import Concern, Meta, ServerCapabilities
from pierhead.router.cli.nodes import state_of


def command(
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Show the control plane, its runners and its builds, and what needs you."""
    meta, able, page = asyncio.run(_look(url))
    if as_json:
        give_json(StatusPage(meta=meta, capabilities=able, builds=page.builds))
        return
    _tell("needs you", [one for one in able.concerns if one.needs_you])
    for runner in able.runners:
        # One that was stopped, or is awaited for the first time, is as somebody wants it.
        if (state := state_of(runner)) in {"offline", "unable"}:
            give(f"needs you   {runner.name} is {state} (last seen {runner.seen_at or 'never'})")
    _tell("note", [one for one in able.concerns if not one.needs_you])
    running = sum(view.state == "leased" for view in page.builds)
    waiting = sum(view.state == "queued" for view in page.builds)
    give(f"control plane ready, {meta.release}, registry {able.registry}")
    give(f"{running} builds running, {waiting} waiting")
    for runner in able.runners:
        facts = runner.capabilities
        what = (
            f"{', '.join(facts.platforms)}, {facts.backend}, isolation {facts.isolation}"
            if facts
            else "-"
        )
        give(f"  {runner.name:14} {state_of(runner):8} {len(runner.builds)} builds   {what}")
        for said in facts.limits.values() if facts else ():
            give(f"  {'':14} {said}")


def _tell(label: str, concerns: Sequence[Concern]) -> None:
    for one in concerns:
        give(f"{label:11} {one.text}")
        give(f"{'':11} -> {one.remedy}")


async def _look(url: str | None) -> tuple[Meta, ServerCapabilities, BuildPage]:
    async with find_place(url).client() as client:
        return await client.meta(), await client.capabilities(), await client.builds(limit=200)
