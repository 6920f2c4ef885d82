"""The commands with their flags as values, for whatever writes about them: manual, completion."""

from dataclasses import dataclass
from typing import Any

from typer.main import get_command

from pierhead.protocol.cli.commands import Command
from pierhead.protocol.cli.running import app_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option."""

    names: tuple[str, ...]  # "-t", "--tag"
    value: str | None  # what stands for its value; none: it is a switch
    help: str
    default: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One command, or a group of them."""

    name: str  # "builds watch"
    help: str
    arguments: tuple[str, ...]  # "BUILD_ID"
    flags: tuple[Flag, ...]
    children: tuple["Node", ...] = ()


def tree_of(command: Command) -> Node:
    """Return a command with all below it."""
    return _node(command.name, get_command(app_of(command.load())))


def _node(name: str, found: Any) -> Node:
    children = getattr(found, "commands", {})
    shown = [one for one in found.params if not getattr(one, "hidden", False)]
    return Node(
        name=name,
        help=(found.help or "").strip(),
        arguments=tuple(_argument(one) for one in shown if one.opts[0][0] != "-"),
        flags=tuple(_flag(one) for one in shown if one.opts[0][0] == "-"),
        children=tuple(_node(f"{name} {key}", below) for key, below in children.items()),
    )


def _argument(found: Any) -> str:
    text = (found.metavar or found.name).upper()
    return text if found.required else f"[{text}]"


def _flag(found: Any) -> Flag:
    default = found.default
    said = default if isinstance(default, str | int) and not isinstance(default, bool) else ""
    return Flag(
        names=tuple(found.opts),
        value=None if found.is_flag else (found.metavar or found.name).upper(),
        help=found.help or "",
        default=str(said),
    )
