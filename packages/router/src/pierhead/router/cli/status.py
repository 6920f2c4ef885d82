"""`pierhead status`: one page."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from pierhead.protocol.answers import StatusPage
from pierhead.protocol.build import BuildPage
from pierhead.protocol.cli.given import AsJson, Url
from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import give, give_json
from pierhead.protocol.meta import BuildCounts, Concern, Meta, ServerCapabilities
from pierhead.protocol.runner import RunnerView
from pierhead.protocol.units import counted
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
    give(f"control plane ready, {meta.release}, registry {able.registry}")
    give(_counts(able.builds or _counted_in(page)))
    for runner in able.runners:
        facts = runner.capabilities
        what = (
            f"{', '.join(facts.platforms)}, {facts.backend}, isolation {facts.isolation}"
            if facts
            else "-"
        )
        give(f"  {runner.name:14} {state_of(runner):8} {_doing(runner):8}   {what}")
        for said in facts.limits.values() if facts else ():
            give(f"  {'':14} {said}")


def _counts(counts: BuildCounts) -> str:
    of = f" of {counts.project}" if counts.project else ""
    return f"{counted(counts.running, 'build')}{of} running, {counts.waiting} waiting"


def _counted_in(page: BuildPage) -> BuildCounts:
    """Count in the newest builds, as an older control plane does not say how many there are."""
    states = Counter(view.state for view in page.builds)
    return BuildCounts(running=states["leased"], waiting=states["queued"])


def _doing(runner: RunnerView) -> str:
    return counted(len(runner.builds), "build")


def _tell(label: str, concerns: Sequence[Concern]) -> None:
    for one in concerns:
        give(f"{label:11} {one.text}")
        give(f"{'':11} -> {one.remedy}")


async def _look(url: str | None) -> tuple[Meta, ServerCapabilities, BuildPage]:
    async with find_place(url).client() as client:
        return await client.meta(), await client.capabilities(), await client.builds(limit=200)
