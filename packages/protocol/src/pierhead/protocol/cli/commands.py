"""Every command of pierhead: what it does, where its code is, and what to install for it.

The table is what makes a start quick: the command that was asked for is imported and nothing is
searched. Other distributions add commands by the entry points `pierhead.commands`.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

GROUP: Final = "pierhead.commands"


class Command(NamedTuple):
    """One command of `pierhead`."""

    group: str
    name: str
    summary: str
    package: str  # what to install for it
    target: str  # MODULE:NAME

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.target.partition(":")[0]

    @property
    def installed(self) -> bool:
        """Its code is on this machine."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def load(self) -> Any:
        """Import it: a Typer app, or a function with its options."""
        return getattr(importlib.import_module(self.module), self.target.partition(":")[2])


def _router(
    group: str, name: str, summary: str, *, server: bool = False, app: str | None = None
) -> Command:
    """Return a command of the router; `app`: the module of a group of commands."""
    package = "pierhead-router[server]" if server else "pierhead-router"
    target = f"{app}:app" if app else f"{name}:command"
    return Command(group, name, summary, package, f"pierhead.router.cli.{target}")


def _runner(name: str, summary: str, *, is_app: bool = False) -> Command:
    target = f"pierhead.runner.cli.{name}:{'app' if is_app else 'command'}"
    return Command("machines", name, summary, "pierhead-runner", target)


def _here(name: str, summary: str, what: str) -> Command:
    target = f"pierhead.protocol.cli.{name}:{what}"
    return Command("more", name, summary, "pierhead-protocol[cli]", target)


# fmt: off
COMMANDS: Final = (
    _router("everyday", "build", "build an image: here, or on your machines"),
    _router("everyday", "builds", "list, show, follow, repeat and cancel builds", app="builds"),
    _router("everyday", "status", "one page: the control plane, runners, builds"),
    _router("machines", "up", "keep a control plane on this machine", server=True),
    _router("machines", "serve", "run a control plane in the foreground", server=True),
    _router("machines", "add", "make the line that another machine pastes"),
    _runner("join", "paste it there"),
    _router("machines", "nodes", "list the machines, or remove one", app="nodes"),
    _router("machines", "ca", "by whom it is believed, and how that changes", app="authority"),
    _runner("runner", "run a machine that has joined", is_app=True),
    _runner("doctor", "say what keeps this machine from building"),
    _router("more", "projects", "projects, environments, tokens", app="projects"),
    _router("more", "registries", "logins at other registries, for base images", app="registries"),
    _router("more", "owner-token", "the owner's tokens: list, make, rotate, end", app="tokens"),
    _here("login", "remember a control plane", "command"),
    _here("completion", "let the shell complete commands, ids and projects", "app"),
)
# fmt: on


def find(name: str) -> Command | None:
    """Return an installed command; others than ours are looked for among the entry points."""
    for command in COMMANDS:
        if command.name == name:
            return command if command.installed else None
    return next((command for command in _added() if command.name == name), None)


def installed() -> list[Command]:
    """Return all commands of this machine, ours first."""
    return [*(command for command in COMMANDS if command.installed), *_added()]


def _added() -> Iterator[Command]:
    """Yield what other distributions add."""
    ours = {command.name for command in COMMANDS}
    if ours.issuperset(_declared()):
        return
    # Only when it is needed: it reads all that every distribution says about itself.
    from importlib.metadata import entry_points  # noqa: PLC0415

    for point in entry_points(group=GROUP):
        if point.name not in ours:
            package = point.dist.name if point.dist else ""
            yield Command("more", point.name, f"of {package}", package, point.value)


def _declared() -> Iterator[str]:
    """Yield the names of all commands that distributions declare (PyPA, "Entry points")."""
    for place in dict.fromkeys(sys.path):
        names: list[str] = []
        # Read at once: whoever asks may stop in between, and would leave the folder open.
        with contextlib.suppress(OSError):
            names = os.listdir(place or ".")
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                yield from _declared_by(os.path.join(place or ".", name, "entry_points.txt"))


def _declared_by(file: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(file, encoding="utf-8") as lines:
        inside = False
        for line in map(str.strip, lines):
            if line.startswith("["):
                inside = line == f"[{GROUP}]"
            elif inside and "=" in line:
                yield line.partition("=")[0].strip()
