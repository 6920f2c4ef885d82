"""Make a root file system with Python for images, without a registry: debootstrap, as one tar.

`python -m tools.base_image FILE` writes it, from a cache when it was made before.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SUITE: Final = "bookworm"
PACKAGES: Final = "python3"
CACHE: Final = Path.home() / ".cache" / "pierhead" / f"python-{SUITE}.tar"
# What no container needs.
LEFT_OUT: Final = (
    *("var/cache", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man"),
    *("usr/share/locale", "usr/share/info", "dev", "proc", "sys"),
)


def make(target: Path) -> None:
    """Install the packages into a folder, and pack what a container needs of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pierhead-base-") as folder:
        root, packed = Path(folder) / "root", Path(folder) / "base.tar"
        include = f"--include={PACKAGES}"
        run("debootstrap", "--variant=minbase", include, SUITE, str(root))
        skip = [f"--exclude=./{path}/*" for path in LEFT_OUT]
        run(
            "tar",
            "--create",
            "--numeric-owner",
            *skip,
            f"--directory={root}",
            f"--file={packed}",
            ".",
        )
        shutil.move(packed, target.with_suffix(".part"))
    target.with_suffix(".part").replace(target)


def run(*command: str) -> None:
    """Run a command that has to succeed; what it says goes to the error output."""
    subprocess.run(command, check=True, stdout=sys.stderr)


def base_image(target: Path) -> None:
    """Put the file system where it is wanted."""
    if not CACHE.is_file():
        make(CACHE)
    shutil.copyfile(CACHE, target)


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    target = parser.parse_args().file
    if not CACHE.is_file() and shutil.which("debootstrap") is None:
        print("error: debootstrap is not installed\n\nhint: apt-get install debootstrap")
        return 1
    base_image(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
