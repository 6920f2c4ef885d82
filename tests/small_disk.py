"""A disk that is soon full, or that nobody may write to: a tmpfs (tmpfs(5))."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Have one mounted at a folder, which is made; `size=4m`, say."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
