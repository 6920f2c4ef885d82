"""Whoever looks on from another shell sees a build to its end, where one command started all."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from pierhead.protocol.client.client import RouterClient
from pierhead.router.attendance import noted_url
from tests.ports import free_port

from .stage import BIN, BUSYBOX, HELLO, Stage, eventually


@pytest.fixture
def alone(tmp_path: Path) -> Stage:
    """A machine on which nobody chose a control plane, and the usual port is somebody else's."""
    on = Stage(tmp_path, free_port(), more={"PIERHEAD_URL": ""})
    config = tmp_path / "config"
    config.mkdir()
    (config / "local.json").write_text(json.dumps({"url": on.url}))
    return on


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "hello"
    folder.mkdir()
    shutil.copy(BUSYBOX, folder / "busybox")
    (folder / "Dockerfile").write_text(HELLO + "RUN sleep 8; echo the very last word\n")
    return folder


Begin: TypeAlias = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(alone: Stage) -> Iterator[Begin]:
    """Begin a command; none is left at the end."""
    begun: list[subprocess.Popen[str]] = []

    def one(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [BIN / "pierhead", *arguments],
            env={**os.environ, **alone.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield one
    for process in begun:
        process.kill()
        process.communicate()


async def said(process: "subprocess.Popen[str]") -> tuple[str, str]:
    return await asyncio.to_thread(process.communicate, timeout=120)


async def in_last_step(on: Stage) -> bool:
    url = noted_url(on.folder / "data") if (on.folder / "data").exists() else None
    if url is None:
        return False
    async with RouterClient(url, token=on.token) as owner:
        return any("sleep" in (build.step or "") for build in (await owner.builds()).builds)


def is_held(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def somebody_looks_on(on: Stage) -> bool:
    return is_held(on.folder / "data/once.watchers")


async def plane_is_gone(on: Stage) -> bool:
    return noted_url(on.folder / "data") is None


@pytest.mark.usefixtures("nobody_named")
@pytest.mark.parametrize("killed", [False, True], ids=["it-ends-first", "it-is-killed"])
async def test_whoever_watches_sees_the_end_when_the_one_who_began_is_gone(
    alone: Stage, begin: Begin, folder: Path, killed: bool
) -> None:
    building = begin("build", "--no-cache", str(folder))
    await eventually(lambda: in_last_step(alone), within=60, what="it is in its last step")
    watching = begin("builds", "watch", "@")
    await eventually(lambda: somebody_looks_on(alone), within=30, what="somebody looks on")
    if killed:
        building.kill()
    else:
        watching.send_signal(signal.SIGSTOP)  # it reads late, and the build ends meanwhile
        await said(building)
        watching.send_signal(signal.SIGCONT)
    reference, story = await said(watching)

    assert watching.returncode == 0, story
    assert "the very last word" in story
    assert "built here in" in story
    assert "@sha256:" in reference
    assert "does not answer" not in story
    await said(building)
    await eventually(lambda: plane_is_gone(alone), within=30, what="it ends when nobody uses it")


@pytest.mark.usefixtures("nobody_named")
async def test_a_build_is_repeated_where_nothing_runs_any_more(
    alone: Stage, begin: Begin, folder: Path
) -> None:
    first = begin("build", str(folder))
    await said(first)
    await eventually(lambda: plane_is_gone(alone), within=30, what="nothing is left of it")

    again = begin("builds", "rerun", "@")
    reference, story = await said(again)

    assert again.returncode == 0, story
    assert "no control plane yet: building once on this machine" in story
    assert "@sha256:" in reference
    detached = begin("builds", "rerun", "--detach", "@")
    nothing, refused = await said(detached)
    assert (detached.returncode, nothing) == (3, "")
    assert refused.startswith("error: ")
    assert "hint: pierhead up" in refused
    await eventually(lambda: plane_is_gone(alone), within=30, what="nothing is left of it")
