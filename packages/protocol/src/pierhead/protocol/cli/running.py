"""Runs one command, and ends it with the right code and the right words.

Only the command that was asked for is imported, and only what it needs before its first line: that
has to come within a blink.
"""

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

import typer
from typer.exceptions import Abort, TyperException

from pierhead.protocol.cli.commands import COMMANDS, Command, find
from pierhead.protocol.cli.speak import (
    INTERRUPTED,
    OK,
    REFUSED,
    USAGE,
    CommandFailed,
    fail,
    fail_with,
    speak_json,
)
from pierhead.protocol.cli.usage import wrong_usage
from pierhead.protocol.errors import PierheadError

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


def run_command(name: str, arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    speak_json("--json" in arguments)
    try:
        command = find(name)
        if command is None:
            raise _unknown(name)
        return _run(command, arguments)
    except CommandFailed as failed:
        return failed.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except PierheadError as error:
        return fail_with(error).code
    finally:
        speak_json(False)


def app_of(loaded: typer.Typer | Callable[..., None]) -> typer.Typer:
    """Return what was loaded as an app."""
    if isinstance(loaded, typer.Typer):
        return loaded
    app = typer.Typer(add_completion=False)
    app.command()(loaded)
    return app


def _unknown(name: str) -> CommandFailed:
    for command in COMMANDS:
        if command.name == name:
            text = f"the command {name} is not installed on this machine"
            return fail(text, f"pip install '{command.package}'", USAGE)
    return fail(f"there is no command {name}", "pierhead --help", USAGE)


# Nothing else is written without a name.
_OF_THE_OUTPUT: Final = {errno.ENOSPC, errno.EIO, errno.EDQUOT}


def _run(command: Command, arguments: list[str]) -> int:
    # httpx would import a command line of its own, which costs as much as all the rest of a start.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    try:
        app = app_of(command.load())
        # A command's module may look at its arguments before they are parsed: to say more than
        # that an option is unknown, and to take what others write in another way.
        prepare = getattr(sys.modules[command.module], "prepare_arguments", None)
        if prepare is not None:
            arguments = prepare(arguments)
        code = app(args=arguments, prog_name=f"pierhead {command.name}", standalone_mode=False)
    except ModuleNotFoundError as error:
        raise _missing(command.name, error) from error
    except TyperException as error:
        raise wrong_usage(command.name, error) from error
    except Abort:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f": {_shown(error.filename)}" if error.filename else ""
        hint = "look at its path and its rights" if where else f"pierhead {command.name} --help"
        if error.errno in _OF_THE_OUTPUT and not where:
            hint = "the output leads to where no more can be written: send it elsewhere"
        raise fail(f"{error.strerror or error}{where}", hint, REFUSED) from error
    except UnicodeEncodeError as error:
        raise fail("an argument is not text in UTF-8", "write it in another way", USAGE) from error
    except BaseException as error:
        if _is_cancelled(error):
            return INTERRUPTED
        raise
    return code if isinstance(code, int) else OK


def _is_cancelled(error: BaseException) -> bool:
    """Say whether it is asyncio's; a command that never imported asyncio cannot raise it."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


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
