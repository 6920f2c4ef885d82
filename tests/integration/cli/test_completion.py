"""The scripts in their real shells: what a person gets for a TAB."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pierhead.protocol.cli.completion import SCRIPTS

BIN = Path(sys.executable).parent
ASK = {
    "bash": """
        source "$1"
        COMP_WORDS=(pierhead $2 "$3"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _pierhead 2>/dev/null; printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compdef() { : }
        _describe() { print -l -- "${(@P)2}" }
        _files() { print files }
        source "$1"
        words=(pierhead ${=2} "$3"); CURRENT=$#words
        _pierhead
    """,
    "fish": 'source $argv[1]; complete -C "pierhead $argv[2] $argv[3]"',
}


def completed(shell: str, script: Path, before: str, last: str) -> list[str]:
    """Return the words that a shell offers."""
    name = [] if shell == "fish" else [shell]  # $0
    done = subprocess.run(
        [shell, "-c", ASK[shell], *name, script, before, last],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(script.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.replace("\t", ":").partition(":")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", list(ASK))
def test_a_shell_completes_commands_flags_and_files(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])

    assert completed(shell, script, "", "bui") == ["build", "builds"]
    assert completed(shell, script, "build", "--no") == ["--no-cache"]
    assert completed(shell, script, "builds", "run") == ["run-here"]
    if shell != "bash":  # bash hands files to readline, which is not here
        assert "files" in [*completed(shell, script, "build", ""), "files" * (shell == "fish")]
