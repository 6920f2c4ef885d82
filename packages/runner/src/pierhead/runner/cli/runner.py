"""`pierhead runner`: run a machine that has joined."""

import os
import sys
from typing import Annotated

import typer

from pierhead.protocol.cli import service
from pierhead.protocol.cli.speak import REFUSED, fail, give, give_json, tell
from pierhead.runner.cli.join import runner_service
from pierhead.runner.config import at_work, load_joined, state_folder

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Run a machine that has joined."""


@app.command()
def start() -> None:
    """Take builds until told to stop: once to finish what runs, twice to give it back."""
    load_joined(state_folder())
    # The frame of the command weighs more than the runner itself; leave it behind.
    os.execv(sys.executable, [sys.executable, "-m", "pierhead.runner", "start"])  # noqa: S606


@app.command()
def stop() -> None:
    """End the runner of this machine: it finishes its builds, and stays away."""
    state = state_folder()
    found = service.stop(runner_service(state, user=os.geteuid() != 0))
    pid = at_work(state)  # not as a service: somebody typed `pierhead runner start`
    if pid is not None:
        tell(f"process {pid} finishes what it builds, for {service.STOP_SECONDS} s at most")
        service.end(pid, lambda: at_work(state) == pid)
    elif not found:
        raise fail(f"no runner is at work here ({state})", "pierhead runner show", REFUSED)
    tell("stopped; this machine still belongs to its control plane: pierhead runner start")


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="As JSON")] = False) -> None:
    """Show what this machine joined, and whether its runner is at work; never its credential."""
    state = state_folder()
    joined, pid = load_joined(state), at_work(state)
    found = {"name": joined.name, "url": joined.url, "slots": joined.slots}
    if as_json:
        give_json({**found, "process": pid})
        return
    for name, value in found.items():
        give(f"{name:8} {value}")
    give(f"{'state':8} {f'at work: process {pid}' if pid else 'stopped: pierhead runner start'}")
