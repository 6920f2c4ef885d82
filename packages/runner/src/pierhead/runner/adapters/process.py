"""Subprocesses without a shell: run to the end with bounded output, or started in a cgroup."""

import asyncio
import os
import pwd
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
OUTPUT_BYTES_MAX: Final = 1024 * 1024


def _home() -> str:
    """Return the home of the user, where buildah looks for settings: not what HOME says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


# Nothing of the runner's own environment reaches a build.
ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": _home(),
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    output: str


async def run(*command: str, seconds: float = 60) -> Ended:
    """Run a command and return how it ended; a missing program is code 127."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=ENVIRONMENT,
        )
    except OSError as error:
        return Ended(127, str(error))
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        return Ended(124, f"no end after {seconds} s")
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    assert process.returncode is not None
    return Ended(process.returncode, output[-OUTPUT_BYTES_MAX:].decode("utf-8", "replace"))


async def start_in(
    cgroups: Sequence[Path], command: Sequence[str], *, has_input: bool = False
) -> asyncio.subprocess.Process:
    """Start a command in a process group of its own, inside cgroups from its first instruction."""
    files = [str(folder / "cgroup.procs") for folder in cgroups]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(_LAUNCHER),
        *files,
        "--",
        *command,
        stdin=asyncio.subprocess.PIPE if has_input else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=ENVIRONMENT,
        start_new_session=True,
        limit=256 * 1024,
    )


def kill_group(pid: int) -> None:
    """End a process group at once; harmless when it is gone."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
