"""The engine of this machine that takes an image: docker, else podman."""

import shutil
import subprocess
from typing import Final

from pierhead.protocol.cli.speak import fail

_ENGINES: Final = ("docker", "podman")


def engine() -> str:
    """Return the engine of this machine that takes images.

    Raises:
        CommandFailed: there is none.
    """
    silent: list[str] = []
    for name in _ENGINES:
        if shutil.which(name) is None:
            continue
        if run([name, "version"]).returncode == 0:
            return name
        silent.append(name)
    if silent:
        text = f"--load: {silent[0]} is installed, but does not answer"
        raise fail(text, f"{silent[0]} version says why; -o FILE.tar needs no engine")
    text = "--load: there is no docker and no podman on this machine"
    raise fail(text, "-o FILE.tar writes the image into a file")


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command of it."""
    return subprocess.run(command, capture_output=True, text=True, check=False)
