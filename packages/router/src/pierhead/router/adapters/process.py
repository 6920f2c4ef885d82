"""The runner on this machine as a child process."""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from pierhead.protocol.environment import for_a_process

STOP_SECONDS: Final = 15.0


def runner_installed() -> bool:
    """Say whether the runner's package is on this machine."""
    try:
        return importlib.util.find_spec("pierhead.runner.app") is not None
    except ModuleNotFoundError:
        return False


class HereProcess:
    """One life of the runner on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, line: bytes, log_file: Path) -> "HereProcess":
        """Start it and give it its orders."""
        with log_file.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "pierhead.runner",
                "here",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=for_a_process(os.environ),
                start_new_session=True,
            )
        assert process.stdin is not None
        process.stdin.write(line)
        await process.stdin.drain()
        return cls(process)

    async def wait(self) -> int:
        """Return its exit code when it has ended."""
        return await self._process.wait()

    async def stop(self) -> None:
        """End its input, wait, and kill it if it does not end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
