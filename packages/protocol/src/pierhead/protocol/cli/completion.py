"""`pierhead completion`: what a shell asks while somebody types.

The scripts know nothing but how to ask; commands, flags, ids, projects and runners are answered
here, so a script never goes stale.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from pierhead.protocol.cli.commands import find, installed
from pierhead.protocol.cli.place import find_place
from pierhead.protocol.cli.speak import USAGE, fail, give, tell
from pierhead.protocol.cli.tree import Flag, Node, tree_of
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.errors import PierheadError

app = typer.Typer(no_args_is_help=True, add_completion=False)
ASK_SECONDS: Final = 2.0
FILES: Final = ":files"  # the shell's own completion of paths
_CHOICES: Final = {
    "--if-nobody": ("here", "wait", "fail"),
    "--network": ("default", "none"),
    "--progress": ("auto", "plain", "quiet"),
}
_BASH: Final = """\
_pierhead() {
    local IFS=$'\\n' answer
    answer=$(pierhead completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) || return
    if [ "$answer" = :files ]; then
        compopt -o default
        return
    fi
    COMPREPLY=($(printf '%s\\n' "$answer" | cut -f1))
}
complete -F _pierhead pierhead
"""
_ZSH: Final = """\
#compdef pierhead
_pierhead() {
    local -a answer
    answer=("${(@f)$(pierhead completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $answer[1] == :files ]]; then
        _files
        return
    fi
    answer=("${(@)answer//$'\\t'/:}")
    _describe pierhead answer
}
compdef _pierhead pierhead
"""
_FISH: Final = """\
function __pierhead_complete
    set -l typed (commandline -opc) (commandline -ct)
    set -l answer (pierhead completion words -- $typed[2..-1] 2>/dev/null)
    if test "$answer[1]" = :files
        __fish_complete_path (commandline -ct)
        return
    end
    printf '%s\\n' $answer
end
complete -c pierhead -f -a '(__pierhead_complete)'
"""
SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
Shell = Annotated[str, typer.Argument(help="bash, zsh or fish; otherwise your own")]


@app.command()
def show(shell: Shell = "") -> None:
    """Print the script for a shell."""
    for line in SCRIPTS[_shell(shell)].rstrip().split("\n"):
        give(line)


@app.command()
def install(shell: Shell = "") -> None:
    """Write the script to where the shell looks for it."""
    name = _shell(shell)
    target = _target(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(SCRIPTS[name])
    give(str(target))
    if name == "zsh":
        tell(f"once, in ~/.zshrc before compinit: fpath=({target.parent} $fpath)")
    tell("it works in every new shell")


@app.command(hidden=True)
def words(typed: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Answer a shell: one candidate a line, with a tab before what it is."""
    for line in candidates(typed or [""]):
        give(line)


def candidates(typed: Sequence[str]) -> list[str]:
    """Return what the last word may become; the words before it are whole."""
    *before, last = typed
    if not before:
        found = [f"{command.name}\t{command.summary}" for command in installed()]
        return [line for line in found if line.startswith(last)]
    command = find(before[0])
    if command is None:
        return []
    node, rest = _descend(tree_of(command), before[1:])
    previous = rest[-1] if rest else ""
    taking = next((flag for flag in node.flags if previous in flag.names and flag.value), None)
    if taking is not None:
        found = _values(taking)
    elif last.startswith("-"):
        found = [f"{flag.names[-1]}\t{flag.help}" for flag in node.flags]
    elif node.children:
        found = [f"{one.name.rpartition(' ')[2]}\t{_first(one.help)}" for one in node.children]
    else:
        found = _arguments(node)
    return found if found == [FILES] else [line for line in found if line.startswith(last)]


def _descend(node: Node, rest: Sequence[str]) -> tuple[Node, list[str]]:
    left = list(rest)
    while left and node.children:
        below = next((one for one in node.children if one.name.endswith(f" {left[0]}")), None)
        if below is None:
            break
        node = below
        left.pop(0)
    return node, left


def _values(flag: Flag) -> list[str]:
    name = flag.names[-1]
    if name == "--project":
        return _projects()
    if name == "--on":
        return _runners()
    return list(_CHOICES.get(name, (FILES,)))


def _arguments(node: Node) -> list[str]:
    first = node.arguments[0].strip("[]") if node.arguments else ""
    if first == "BUILD_ID":
        return _builds()
    if first == "SHELL":
        return list(SCRIPTS)
    if first in {"PROJECT", "NAME"} and node.name.startswith("projects"):
        return _projects()
    return [FILES] if first else []


def _builds() -> list[str]:
    async def ask(client: RouterClient) -> list[str]:
        page = await client.builds(limit=100)
        return [f"{view.id}\t{view.project}, {view.state}" for view in page.builds]

    return _asked(ask)


def _projects() -> list[str]:
    async def ask(client: RouterClient) -> list[str]:
        return [project.name for project in (await client.projects()).projects]

    return _asked(ask)


def _runners() -> list[str]:
    async def ask(client: RouterClient) -> list[str]:
        return [runner.name for runner in (await client.capabilities()).runners]

    return _asked(ask)


def _asked(ask: Callable[[RouterClient], Awaitable[list[str]]]) -> list[str]:
    """Ask the control plane; who types must not wait for one that is away, nor see why."""

    async def run() -> list[str]:
        async with asyncio.timeout(ASK_SECONDS), find_place().client() as client:
            return await ask(client)

    try:
        return asyncio.run(run())
    except (PierheadError, TimeoutError):
        return []


def _shell(said: str) -> Literal["bash", "zsh", "fish"]:
    name = said or Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        text = f"SHELL has to be one of bash, zsh, fish, and not {name[:80]!r}"
        raise fail(text, "pierhead completion show bash", USAGE)
    return name  # type: ignore[return-value]


def _target(shell: str) -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion/completions/pierhead",
        "zsh": data / "zsh/site-functions/_pierhead",
        "fish": config / "fish/completions/pierhead.fish",
    }[shell]


def _first(text: str) -> str:
    return text.partition("\n")[0]
