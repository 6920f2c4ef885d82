"""A control plane for one command: the same router and runner, started and ended with it."""

import asyncio
import contextlib
import importlib.util
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from pierhead.protocol.cli.builder import require_builder
from pierhead.protocol.cli.place import Place, config_folder
from pierhead.protocol.cli.speak import UNAVAILABLE, USAGE, fail, tell
from pierhead.protocol.environment import for_a_process
from pierhead.protocol.errors import PierheadError
from pierhead.router.config import DEFAULT_PORT, data_folder

START_SECONDS: Final = 30.0


@contextlib.asynccontextmanager
async def control_plane(place: Place, *, stays: bool = False) -> AsyncIterator[Place]:
    """Yield the place if it answers; if nobody chose it and nothing is there, start one for now.

    `stays`: one that is started for now will not do.
    """
    if await _answers(place):
        yield place
        return
    if place.chosen:
        hint = "is it running? on its machine: pierhead status"
        raise fail(f"no control plane answers at {place.url}", hint, UNAVAILABLE)
    if stays:
        text = "no control plane is here that would go on with the build"
        raise fail(text, "pierhead up, or build without --detach", UNAVAILABLE)
    for module, package in (
        ("starlette", "pierhead-router[server]"),
        ("pierhead.runner", "pierhead-runner"),
    ):
        if not _found(module):
            text = f"no control plane answers at {place.url}, and this machine cannot be one"
            raise fail(text, f"pip install '{package}', or: pierhead login URL", USAGE)
    require_builder()
    tell("no control plane yet: building once on this machine (pierhead up keeps one)")
    async with _started() as url:
        token = (config_folder() / "token").read_text().strip()
        yield Place(url, token, chosen=True)


@contextlib.asynccontextmanager
async def _started() -> AsyncIterator[str]:
    reading, writing = os.pipe()
    port = DEFAULT_PORT if _is_free(DEFAULT_PORT) else 0
    data = data_folder()
    data.mkdir(parents=True, exist_ok=True, mode=0o750)
    with (data / "serve.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pierhead.router",
            "--data",
            str(data),
            "--config",
            str(config_folder()),
            "--port",
            str(port),
            "--ready-fd",
            str(writing),
            "--end-with-input",
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=for_a_process(os.environ),
            pass_fds=[writing],
            start_new_session=True,
        )
    os.close(writing)
    try:
        yield await _ready(reading, data / "serve.log")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.shield(process.wait())


async def _ready(reading: int, log: Path) -> str:
    """Return the address that the started process tells."""
    with os.fdopen(reading, "rb") as pipe:
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await asyncio.to_thread(pipe.readline)
        except TimeoutError:
            line = b""
    if not line:
        raise fail("the control plane did not start", f"read {log}", UNAVAILABLE)
    return line.decode().strip()


async def _answers(place: Place) -> bool:
    async with place.client() as client:
        try:
            await client.meta()
        except PierheadError:
            return False
    return True


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
