"""`pierhead nodes`: the machines that work for this control plane."""

import sys
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from pierhead.protocol.answers import NodePage
from pierhead.protocol.cli.given import AsJson, Url, formed
from pierhead.protocol.cli.speak import columns, duration, fail, give, give_json, size, tell
from pierhead.protocol.ids import RunnerName
from pierhead.protocol.runner import RunnerView
from pierhead.protocol.units import counted
from pierhead.router.cli.tokens import ask

app = typer.Typer(invoke_without_command=True, add_completion=False)
HEAD: Final = ("NAME", "STATE", "DOING", "CPUS", "MEMORY", "PLATFORM", "SEEN", "VERSION")


@app.callback()
def nodes(context: typer.Context, as_json: AsJson = False, url: Url = None) -> None:
    """List the machines that work for this control plane, or remove one."""
    if context.invoked_subcommand is not None:
        return
    found = ask(url, lambda client: client.capabilities())
    if as_json:
        give_json(NodePage(nodes=found.runners))
        return
    now = datetime.now(UTC)  # noqa: TID251 - what people see is real time
    rows = [HEAD, *(row_of(node, now) for node in found.runners)]
    for line in columns(rows):
        give(line)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of the node", callback=formed(RunnerName))],
    plan: Annotated[bool, typer.Option("--plan", help="Say what would happen; do nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    url: Url = None,
) -> None:
    """Remove a machine: its credential ends, and what it is building waits again."""
    found = ask(url, lambda client: client.capabilities())
    node = next((node for node in found.runners if node.name == name), None)
    if node is None:
        raise fail(f"there is no node {name}", "list them: pierhead nodes")
    if node.here:
        ask(url, lambda client: client.remove_runner(name))  # why it is not removed is said there
    tell(f"{name} will not be let in again; its data stays on it")
    tell(f"builds that wait again: {', '.join(node.builds) or 'none'}")
    if plan:
        return
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"remove {name}?", err=True)):
        raise fail(f"{name} was not removed", f"pierhead nodes remove {name} --yes")
    ask(url, lambda client: client.remove_runner(name))
    tell(f"removed {name}")


def row_of(node: RunnerView, now: datetime) -> tuple[str, ...]:
    """Return a node as a row of the table."""
    able = node.capabilities
    return (
        node.name,
        state_of(node),
        doing(node),
        str(able.cpus) if able else "-",
        size(able.memory_bytes) if able else "-",
        ", ".join(able.platforms) if able else "-",
        seen(node.seen_at, now),
        able.release if able else "-",
    )


def state_of(node: RunnerView) -> str:
    """Return the word for how a node is; why one is unable, `builds why` and `doctor` say."""
    if node.capabilities is None:
        return "expected"
    if node.stopped:
        return "stopped"
    if not node.online:
        return "offline"
    return "ready" if node.capabilities.slots else "unable"


def doing(node: RunnerView) -> str:
    """Return what a node is busy with."""
    count, slots = len(node.builds), node.capabilities.slots if node.capabilities else 0
    return f"{counted(count, 'build')} of {slots}" if count else "-"


def seen(at: str | None, now: datetime) -> str:
    """Return how long ago a node said something."""
    if at is None:
        return "never"
    seconds = max(0.0, (now - datetime.fromisoformat(at)).total_seconds())
    return duration(seconds, whole=True) if seconds > 2 else "now"
