"""What the tiny build needs: an image of one shell, a server to be reached, a note of how it went.

The image is the machine's own shell with its libraries: no static program can be expected, and
nothing has to be had from a registry.
"""

import asyncio
import contextlib
import ipaddress
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from pierhead.protocol.version import RELEASE
from pierhead.runner.adapters.network import Network
from pierhead.runner.adapters.process import run
from pierhead.runner.domain.probe import DOCKERFILE, SCRIPT
from pierhead.runner.removal import remove_tree

_SHELL: Final = "/bin/sh"
_LIBRARY: Final = re.compile(r"(?:^|\s)(/\S+)")
# The packets of whoever may not come in are dropped: there is nothing to be heard.
_KNOCK_SECONDS: Final = 0.5
_KNOCK: Final = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {})"
_NOTE: Final = "isolates.json"


async def write_context(folder: Path) -> None:
    """Write the context of the tiny build; what was there is removed."""
    await asyncio.to_thread(remove_tree, folder)
    listed = await run("ldd", _SHELL)  # of a static one it fails: that needs nothing else
    files = _LIBRARY.findall(listed.output) if listed.code == 0 else []
    await asyncio.to_thread(_write, folder, {_SHELL, *files})


def _write(folder: Path, files: set[str]) -> None:
    root = folder / "root"
    for file in files:
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (root / "look").write_text(SCRIPT)
    (folder / "Dockerfile").write_text(DOCKERFILE)


async def reaches_us(network: Network, gateway: ipaddress.IPv4Address) -> bool:
    """Say whether a server of this machine can be reached from a build's network."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)  # noqa: S104
    port = server.sockets[0].getsockname()[1]
    try:
        knock = (sys.executable, "-I", "-S", "-c", _KNOCK.format(_KNOCK_SECONDS))
        place = f"--net={network.path}"
        return (await run("nsenter", place, *knock, str(gateway), str(port))).code == 0
    finally:
        server.close()
        await server.wait_closed()


class Note:
    """Remembers that a machine isolates, as long as kernel, buildah and runc stay the same.

    Only what is good is remembered: a fault may pass.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / _NOTE

    async def is_good(self) -> bool:
        """Say whether the same machine, with the same programs, was seen to isolate."""
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(self._file.read_text())
            return bool(said == await _versions())
        return False

    async def write(self) -> None:
        """Note that it does."""
        fresh = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: it is tried again next time
            fresh.write_text(json.dumps(await _versions()))
            fresh.replace(self._file)

    def forget(self) -> None:
        """Have it tried again at the next start."""
        self._file.unlink(missing_ok=True)


async def _versions() -> dict[str, str]:
    buildah, runc = await asyncio.gather(run("buildah", "--version"), run("runc", "--version"))
    kernel = os.uname()
    return {
        "buildah": buildah.output.strip(),
        "runc": runc.output.strip(),
        "kernel": f"{kernel.release} {kernel.version}",
        "pierhead": RELEASE,
    }
