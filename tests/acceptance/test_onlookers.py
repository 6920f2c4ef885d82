"""Whoever looks on from another shell sees a build to its end, where one command started all."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from pierhead.router.attendance import noted_url
from tests.held_step import HeldStep, held_step
from tests.ports import free_port

from .stage import BIN, BUSYBOX, HELLO, PATIENCE_SECONDS, Stage, eventually


@pytest.fixture
def alone(tmp_path: Path) -> Stage:
    """A machine on which nobody chose a control plane, and the usual port is somebody else's."""
    on = Stage(tmp_path, free_port(), more={"PIERHEAD_URL": ""})
    config = tmp_path / "config"
    config.mkdir()
    (config / "local.json").write_text(json.dumps({"url": on.url}))
    return on


@pytest.fixture
def step() -> Iterator[HeldStep]:
    with held_step(after="echo the very last word") as step:
        yield step


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "hello"
    folder.mkdir()
    shutil.copy(BUSYBOX, folder / "busybox")
    (folder / "Dockerfile").write_text(HELLO)
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
    return await asyncio.to_thread(process.communicate, timeout=2 * PATIENCE_SECONDS)


def looks_on(process: "subprocess.Popen[str]", on: Stage) -> bool:
    """Say whether it is one of those who look on, without touching what says so (proc(5))."""
    file = on.folder / "data/once.watchers"
    lock = f":{file.stat().st_ino}" if file.exists() else "nobody ever did"
    held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    mine = ("FLOCK", "READ", str(process.pid))
    return any((words[1], *words[3:5]) == mine and words[5].endswith(lock) for words in held)


async def plane_is_gone(on: Stage) -> bool:
    return noted_url(on.folder / "data") is None


@pytest.mark.usefixtures("nobody_named")
@pytest.mark.parametrize("killed", [False, True], ids=["it-ends-first", "it-is-killed"])
async def test_whoever_watches_sees_the_end_when_the_one_who_began_is_gone(
    alone: Stage, begin: Begin, folder: Path, step: HeldStep, killed: bool
) -> None:
    async def in_last_step() -> bool:
        return step.is_running

    async def somebody_looks_on() -> bool:
        return looks_on(watching, alone)

    (folder / "Dockerfile").write_text(HELLO + step.line)
    building = begin("build", "--no-cache", str(folder))
    await eventually(in_last_step, within=PATIENCE_SECONDS, what="it is in its last step")
    watching = begin("builds", "watch", "@")
    await eventually(somebody_looks_on, within=PATIENCE_SECONDS, what="somebody looks on")
    if killed:
        building.kill()
        step.let_go()
    else:
        watching.send_signal(signal.SIGSTOP)  # it reads late, and the build ends meanwhile
        step.let_go()
        await said(building)
        watching.send_signal(signal.SIGCONT)
    reference, story = await said(watching)

    assert watching.returncode == 0, story
    assert "\nthe very last word\n" in story
    assert "built here in" in story
    assert "@sha256:" in reference
    assert "does not answer" not in story
    await said(building)
    what = "it ends when nobody uses it"
    await eventually(lambda: plane_is_gone(alone), within=PATIENCE_SECONDS, what=what)


@pytest.mark.usefixtures("nobody_named")
async def test_a_build_is_repeated_where_nothing_runs_any_more(
    alone: Stage, begin: Begin, folder: Path
) -> None:
    first = begin("build", str(folder))
    await said(first)
    what = "nothing is left of it"
    await eventually(lambda: plane_is_gone(alone), within=PATIENCE_SECONDS, what=what)

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
    what = "nothing is left of it"
    await eventually(lambda: plane_is_gone(alone), within=PATIENCE_SECONDS, what=what)
