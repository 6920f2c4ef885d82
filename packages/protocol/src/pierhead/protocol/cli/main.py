"""`pierhead COMMAND`: finds the command among what is installed, and ends with the right code.

Commands are entry points of the group `pierhead.commands`. Only the one that was asked for is
imported: the first line has to come within a blink.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from pierhead.protocol.cli.speak import (
    INTERRUPTED,
    OK,
    REFUSED,
    USAGE,
    CommandFailed,
    fail,
    fail_with,
    give,
)
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.version import RELEASE

# Group, name, what it does, and what to install for it.
COMMANDS: Final = (
    ("everyday", "build", "build an image: here, or on your machines", "pierhead-router"),
    ("everyday", "builds", "list, show, follow and cancel builds", "pierhead-router"),
    ("everyday", "status", "one page: the control plane, runners, builds", "pierhead-router"),
    ("machines", "up", "keep a control plane on this machine", "pierhead-router[server]"),
    ("machines", "serve", "run a control plane in the foreground", "pierhead-router[server]"),
    ("machines", "add", "make the line that another machine pastes", "pierhead-router"),
    ("machines", "join", "paste it there", "pierhead-runner"),
    ("machines", "nodes", "list the machines, or remove one", "pierhead-router"),
    ("machines", "runner", "run a machine that has joined", "pierhead-runner"),
    ("machines", "doctor", "say what keeps this machine from building", "pierhead-runner"),
    ("more", "projects", "projects, environments, tokens", "pierhead-router"),
    ("more", "owner-token", "the owner's tokens: list, make, rotate, end", "pierhead-router"),
    ("more", "login", "remember a control plane", "pierhead-protocol[cli]"),
)
# A module that is missing, and what brings it.
_BRINGS: Final = {
    "starlette": "pierhead-router[server]",
    "uvicorn": "pierhead-router[server]",
    "uvloop": "pierhead-router[server]",
    "sqlalchemy": "pierhead-router[server]",
    "structlog": "pierhead-router[server]",
    "pierhead.runner": "pierhead-runner",
    "pierhead.router": "pierhead-router",
}


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    found = {point.name: point for point in entry_points(group="pierhead.commands")}
    name = arguments[0] if arguments else "--help"
    if name in {"--help", "-h", "help"}:
        give(page(set(found)))
        return OK
    if name in {"--version", "-V"}:
        give(f"pierhead {RELEASE}")
        return OK
    try:
        if name not in found:
            raise _unknown(name)
        return _run(found[name], arguments[1:])
    except CommandFailed as failed:
        return failed.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except PierheadError as error:
        return fail_with(error, as_json="--json" in arguments).code
    except BrokenPipeError:
        # Whoever read our output has enough; the interpreter must not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def page(installed: set[str]) -> str:
    """Return the page that `pierhead` alone shows."""
    lines = ["Build container images somewhere else.", ""]
    shown = ""
    for group, name, summary, _ in COMMANDS:
        if name in installed:
            lines.append(f"{group if group != shown else '':10} {name:11} {summary}")
            shown = group
    return "\n".join([*lines, "", "pierhead COMMAND --help says more."])


def _unknown(name: str) -> CommandFailed:
    for _, known, _, package in COMMANDS:
        if known == name:
            text = f"the command {name} is not installed on this machine"
            return fail(text, f"pip install '{package}'", USAGE)
    return fail(f"there is no command {name}", "pierhead --help", USAGE)


def _run(point: EntryPoint, arguments: list[str]) -> int:
    # Only now, and not for the page: it takes most of the time of a start.
    import typer  # noqa: PLC0415
    from typer.exceptions import Abort, TyperException  # noqa: PLC0415

    # httpx would import a command line of its own, which costs as much as all the rest of a start.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    try:
        loaded = point.load()
        # A command's module may look at its arguments before they are parsed: to say more than
        # that an option is unknown, and to take what others write in another way.
        prepare = getattr(sys.modules[point.module], "prepare_arguments", None)
        if prepare is not None:
            arguments = prepare(arguments)
        app = loaded if isinstance(loaded, typer.Typer) else _single(typer, loaded)
        code = app(args=arguments, prog_name=f"pierhead {point.name}", standalone_mode=False)
    except ModuleNotFoundError as error:
        raise _missing(point.name, error) from error
    except TyperException as error:
        text = getattr(error, "message", "") or str(error)
        raise fail(text or "say which", f"pierhead {point.name} --help", USAGE) from error
    except (Abort, asyncio.CancelledError):
        return INTERRUPTED
    except OSError as error:
        where = f": {_shown(error.filename)}" if error.filename else ""
        raise fail(f"{error.strerror or error}{where}", None, REFUSED) from error
    return code if isinstance(code, int) else OK


def _single(typer: Any, function: Callable[..., None]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return app


def _shown(path: str | bytes | int) -> str:
    """Return a path as text that every terminal takes."""
    return os.fsencode(path).decode("utf-8", "replace") if not isinstance(path, int) else str(path)


def _missing(name: str, error: ModuleNotFoundError) -> CommandFailed:
    module = error.name or ""
    package = next(
        (brings for prefix, brings in _BRINGS.items() if module.startswith(prefix)), None
    )
    hint = f"pip install '{package}'" if package else f"install {module} beside pierhead"
    return fail(f"{name} needs {module}, which is not installed", hint, USAGE)
