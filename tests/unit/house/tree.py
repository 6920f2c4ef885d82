"""The files of this project, as git knows them: tracked ones, and new ones not ignored."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]


@cache
def files() -> tuple[Path, ...]:
    """Return the path of every file of the project."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def files_like(*suffixes: str, under: str = "") -> list[Path]:
    """Return the files with one of these suffixes, below a folder."""
    return [
        path for path in files() if path.suffix in suffixes and path.is_relative_to(ROOT / under)
    ]
