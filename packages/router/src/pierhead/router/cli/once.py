"""A control plane for now: the same router and runner, started by a command and ended with it."""

import asyncio
import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pierhead.protocol.cli import service
from pierhead.protocol.cli.builder import require_builder
from pierhead.protocol.cli.lastwords import LastWords, size_of, words_of_file
from pierhead.protocol.cli.place import Place, config_folder, with_own_token
from pierhead.protocol.cli.service import Service
from pierhead.protocol.cli.speak import REFUSED, UNAVAILABLE, USAGE, fail, tell
from pierhead.protocol.environment import for_a_process
from pierhead.protocol.errors import PierheadError
from pierhead.router.attendance import (
    LOOK_SECONDS,
    become_plane,
    is_begun,
    is_used,
    looking_on,
    note_url,
    noted_url,
    using,
)
from pierhead.router.cli.kept import service_of
from pierhead.router.config import DEFAULT_PORT, data_folder
from pierhead.router.usable import require_folders

START_SECONDS: Final = 30.0
# Until one is found or started: one that ends takes a while, and then ours begins.
SETTLE_SECONDS: Final = 2 * START_SECONDS
_NONE_YET: Final = "no control plane yet: building once on this machine (pierhead up keeps one)"
_AGAIN: Final = (
    "the control plane of `pierhead up` has ended: building once on this machine"
    " (pierhead up starts it again)"
)


@contextlib.asynccontextmanager
async def control_plane(place: Place, *, stays: bool = False) -> AsyncIterator[Place]:
    """Yield the place if it answers; if nobody chose it and nothing is there, start one for now.

    One that another command started for now will do too: it stays as long as either needs it.
    `stays`: one that is there for now will not do.
    """
    if place.chosen:
        async with place.client() as client:
            await client.meta()  # whoever was chosen has to answer, and be who it should be
        yield place
        return
    data = data_folder()
    require_folders(data, config_folder())
    using_it = contextlib.ExitStack()
    with using_it:
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                found, process = await _settle(place, data, using_it, stays=stays)
        except TimeoutError:
            raise _not_started(_log(data), None) from None
        try:
            yield found
        finally:
            using_it.close()
            if process is not None:
                await _leave(process, data)


@contextlib.asynccontextmanager
async def at_hand(place: Place) -> AsyncIterator[Place]:
    """Yield the place; if nobody chose it, and one is there for now, that, which stays for us."""
    data = data_folder()
    if place.chosen or not os.access(data, os.W_OK):
        yield place
        return
    async with looking_on(data):
        once = noted_url(data)
        yield place if once is None else _own(once)


async def _settle(
    place: Place, data: Path, using_it: contextlib.ExitStack, *, stays: bool
) -> tuple[Place, "subprocess.Popen[bytes] | None"]:
    """Return the place to use, and the process if we started it.

    One that ends just now, or that somebody else starts, is waited for.
    """
    kept = _Kept(service_of(data))
    while True:
        with contextlib.ExitStack() as trying:
            if trying.enter_context(using(data)):
                # Whoever has started it for now, a moment ago, wrote one since we began.
                lasting = place if place.token else with_own_token(place)
                found, process = await _there(lasting, data), None
                returns = found is None and kept.returns(place)
                if stays and not returns and not (found and found.lasts):
                    text = "no control plane is here that would go on with the build"
                    raise fail(text, "pierhead up, or build without --detach", UNAVAILABLE)
                if found is None and not returns and (plane := become_plane(data)) is not None:
                    found, process = await _started(place, data, plane)
                if found is not None:
                    using_it.push(trying.pop_all())
                    return found, process
        await asyncio.sleep(LOOK_SECONDS)


@dataclass(slots=True)
class _Kept:
    """The control plane that `pierhead up` keeps, which may just start, or start again."""

    service: Service
    since: float | None = None  # it is waited for

    def returns(self, place: Place) -> bool:
        """Say whether it is to be waited for, though it does not answer.

        Raises:
            CommandFailed: it was, for long enough.
        """
        if not service.is_there(self.service) or not service.is_wanted(self.service):
            return False
        now = time.monotonic()  # noqa: TID251 - somebody waits in real time
        if self.since is None:
            self.since = now
            tell("waiting for the control plane that `pierhead up` keeps")
        if now - self.since > START_SECONDS:
            text = f"the control plane that `pierhead up` keeps does not answer at {place.url}"
            raise fail(
                text, f"pierhead up; it says why: {self.service.where_it_speaks}", UNAVAILABLE
            )
        return True


async def _there(place: Place, data: Path) -> Place | None:
    """Return what answers: one that is there for now, or the place."""
    once = noted_url(data)
    if once is not None and await _answers(own := _own(once)):
        return own
    # Another user's is none of ours, as long as he does not say so by a token.
    ours = replace(place, listener=place.listener or frozenset({0, os.geteuid()}))
    if not await _answers(place if place.token else ours):
        return None
    if place.token is None:
        if is_begun(data) or with_own_token(place).token is not None:
            return None  # it is ours, and began since we looked
        text = f"the control plane at {place.url} is not of {config_folder()}, which has no token"
        raise fail(text, f"pierhead login {place.url}, with one from its owner", REFUSED)
    return place


def _own(url: str) -> Place:
    return with_own_token(Place(url, None, chosen=True, lasts=False))


async def _started(place: Place, data: Path, plane: int) -> tuple[Place, "subprocess.Popen[bytes]"]:
    try:
        _require_parts(place)
        kept = service.is_wanted(service_of(data))
        tell(_AGAIN if kept else _NONE_YET)
        note_url(plane, "")
        since = size_of(_log(data))
        reading, process = _start(data, plane)
        try:
            url = await _ready(reading)
            if url is None:
                raise _not_started(_log(data), words_of_file(_log(data), since))
        except BaseException:
            await _leave(process, data)
            raise
        note_url(plane, url)
        return _own(url), process
    finally:
        os.close(plane)  # the process has it now, to its end


def _require_parts(place: Place) -> None:
    for module, package in (
        ("starlette", "pierhead-router[server]"),
        ("pierhead.runner", "pierhead-runner"),
    ):
        if not _found(module):
            text = f"no control plane answers at {place.url}, and this machine cannot be one"
            raise fail(text, f"pip install '{package}', or: pierhead login URL", USAGE)
    require_builder()


def _start(data: Path, plane: int) -> tuple[int, "subprocess.Popen[bytes]"]:
    """Start its process; return where it tells its address, and the process."""
    reading, writing = os.pipe()
    folders = ["--data", str(data), "--config", str(config_folder())]
    told = ["--port", str(DEFAULT_PORT), "--ready-fd", str(writing), "--held-fd", str(plane)]
    with _log(data).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pierhead.router", *folders, *told, "--end-with-input"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=for_a_process(os.environ),
            pass_fds=[writing, plane],
            start_new_session=True,
        )
    os.close(writing)
    return reading, process


async def _leave(process: "subprocess.Popen[bytes]", data: Path) -> None:
    """Let it end, and wait for that, unless it stays for others."""
    stays = is_used(data)
    assert process.stdin is not None
    process.stdin.close()
    if not stays:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.shield(asyncio.to_thread(process.wait, START_SECONDS))


async def _ready(reading: int) -> str | None:
    """Return the address that the started process tells; none: it ends, or takes too long."""
    with os.fdopen(reading, "rb") as pipe:
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await asyncio.to_thread(pipe.readline)
        except TimeoutError:
            line = b""
    return line.decode().strip() or None


def _log(data: Path) -> Path:
    return data / "serve.log"


def _not_started(log: Path, said: LastWords | None) -> Exception:
    said = said or LastWords("the control plane did not start", f"read {log}")
    return fail(said.error, said.hint, UNAVAILABLE)


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
