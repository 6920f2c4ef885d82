"""What a command line lacks or has too much of, said in our words.

The library that parses it raises errors of its own, whose texts are for programmers and change with
its releases; only what they are about is taken from them.
"""

import difflib
import re
from typing import Any, Final

from pierhead.protocol.cli.given import name_of
from pierhead.protocol.cli.speak import USAGE, CommandFailed, fail

_QUOTED: Final = re.compile(r"No such command '(.*)'", re.S)
_EXTRA: Final = re.compile(r"unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", re.S)


def wrong_usage(command: str, error: Exception) -> CommandFailed:
    """Say what is wrong with a command line, and return what to raise."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or f"pierhead {command}"
    text, hint = _words(error, context, path)
    return fail(text, hint, USAGE)


def _words(error: Any, context: Any, path: str) -> tuple[str, str]:
    """Return what is wrong, and what to type."""
    page = f"{path} --help"
    said = str(getattr(error, "message", "")).rstrip(".")
    option, parameter = getattr(error, "option_name", None), getattr(error, "param", None)
    if type(error).__name__ == "NoSuchOption":
        return f"{path} has no option {option}", _instead_of(str(option), context, path, page)
    if option is not None:
        takes = "takes no value" if "not take" in said else "needs a value"
        return f"{option} {takes}", page
    if parameter is not None:
        return _about(error, parameter, path, said)
    if unknown := _QUOTED.match(said):
        return f"{path} has no command {unknown[1]}", page
    if extra := _EXTRA.search(said):
        return f"{path} does not take {extra[1]}", page
    return said or f"{path} needs to know what to do", page


def _instead_of(option: str, context: Any, path: str, page: str) -> str:
    """Return what to type for an option that a command has not."""
    if path == "pierhead builds log" and option in {"-f", "--follow"}:
        return "pierhead builds watch BUILD_ID follows it"  # as docker logs and kubectl logs do
    command = context.command if context else None
    listing = getattr(command, "commands", {}).get("ls")
    if listing is not None and option in {name for one in listing.params for name in one.opts}:
        return f"{path} ls {option}"  # without a word more it lists
    known = [name for one in command.params for name in one.opts] if command else []
    near = difflib.get_close_matches(option, known, 1)
    return f"{near[0]}? all of them: {page}" if near else page


def _about(error: Any, parameter: Any, path: str, said: str) -> tuple[str, str]:
    """Return what is wrong with an option or an argument."""
    name, about = name_of(parameter), str(getattr(parameter, "help", None) or "").rstrip(".")
    if type(error).__name__ == "MissingParameter":
        return f"{name} is missing" + (f": {about}" if about else ""), f"{path} {name}"
    return f"{name} cannot be that: {about or said}", f"{path} --help"
