"""`pierhead runner`: run a machine that has joined."""

import os
import sys
from typing import Annotated

import typer

from pierhead.protocol.cli import service
from pierhead.protocol.cli.speak import REFUSED, fail, give, give_json, tell
from pierhead.runner.cli.join import runner_service
from pierhead.runner.config import load_joined, state_folder

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
    """End the service that `pierhead join` started: it finishes its builds, and stays away."""
    if not service.stop(runner_service(state_folder(), user=os.geteuid() != 0)):
        raise fail("no runner was started here by pierhead join", "pierhead runner show", REFUSED)
    tell("stopped; this machine still belongs to its control plane: pierhead runner start")


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="As JSON")] = False) -> None:
    """Show what this machine joined; never its credential."""
    joined = load_joined(state_folder())
    found = {"name": joined.name, "url": joined.url, "slots": joined.slots}
    if as_json:
        give_json(found)
        return
    for name, value in found.items():
        give(f"{name:8} {value}")
