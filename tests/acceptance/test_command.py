"""The command as people use it: what is printed where, and how it ends."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pierhead.protocol.client.client import RouterClient
from pierhead.router.attendance import noted_url
from tests.held_step import HeldStep, held_step
from tests.ports import free_port

from .stage import BIN, BUSYBOX, HELLO, PATIENCE_SECONDS, Stage, eventually, stage

REFERENCE = re.compile(r"127\.0\.0\.1:\d+/(?P<project>[a-z]+)@sha256:[0-9a-f]{64}\n\Z")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that builds."""
    context = tmp_path / "hello"
    context.mkdir()
    shutil.copy(BUSYBOX, context / "busybox")
    (context / "Dockerfile").write_text(HELLO)
    return context


async def test_a_build_gives_the_reference_and_tells_the_story_apart(
    tmp_path: Path, folder: Path
) -> None:
    async with stage(tmp_path) as on:
        done = on.run("build", "-t", "web:1.2", str(folder))
        quiet = on.run("build", "-q", str(folder))
        pulled = _pull(on, "web:1.2", tmp_path / "out")
        shown = on.run("builds", "show", "@", "--json")

    assert done.returncode == 0, done.stderr
    found = REFERENCE.match(done.stdout)
    assert found is not None
    assert found["project"] == "web"
    for line in ("context   2 files", "where     here", " 4/5 RUN echo", "web  built here in"):
        assert line in done.stderr
    assert "\r" not in done.stderr
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert REFERENCE.match(quiet.stdout)
    assert pulled.returncode == 0, pulled.stderr
    assert json.loads(shown.stdout)["state"] == "succeeded"


def _pull(on: Stage, image: str, to: Path) -> subprocess.CompletedProcess[str]:
    """Pull as `pierhead up` says, with the auth file that it wrote."""
    source = f"docker://127.0.0.1:{on.port}/{image}"
    login = ["--authfile", str(on.login / "config.json"), "--src-tls-verify=false"]
    command = ["skopeo", "copy", *login, source, f"oci:{to}:x"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


async def test_a_failing_step_is_told_with_its_last_lines_and_where_to_read_on(
    tmp_path: Path, folder: Path
) -> None:
    with (folder / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("RUN echo something is wrong; exit 7\n")
    async with stage(tmp_path) as on:
        done = on.run("build", str(folder))
        log = on.run("builds", "log", "@")

    assert (done.returncode, done.stdout) == (1, "")
    assert "error: hello failed at 6/6 RUN echo something is wrong; exit 7 here " in done.stderr
    assert "a command ended with exit code 7" in done.stderr
    assert "   > something is wrong" in done.stderr
    assert re.search(r"hint: .*pierhead builds log b_\w+", done.stderr)
    assert "something is wrong" in log.stdout


async def test_the_same_key_is_the_same_build(tmp_path: Path, folder: Path) -> None:
    async with stage(tmp_path) as on:
        first = on.run("build", "--detach", "--key", "k1", str(folder))
        again = on.run("build", "--detach", "--key", "k1", str(folder))
        other = on.run("build", "--detach", "--key", "k1", "--no-cache", str(folder))

    assert first.stdout == again.stdout
    assert other.returncode == 1
    assert "was used for" in other.stderr


async def test_events_come_as_json_lines_and_the_last_one_is_the_result(
    tmp_path: Path, folder: Path
) -> None:
    async with stage(tmp_path) as on:
        done = on.run("build", "--json", str(folder))

    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "queued"
    assert kinds[-1] == "finished"
    assert {"started", "phase", "log"} <= set(kinds)
    assert events[-1]["build"]["result"]["outcome"] == "succeeded"


MISTAKES = [
    (["build", "--secret", "id=x", "."], "the file x of --secret id=x: No such file", 2),
    (["build", "--build-arg", "A_TOKEN=x", "."], "A_TOKEN looks like a secret", 1),
    (["build", "--frobnicate", "."], "pierhead build has no option --frobnicate", 2),
    (["build", "no-such-folder"], "no-such-folder is not a folder", 2),
    (["build", "-t", "UPPER", "."], "is not NAME or NAME:TAG", 2),
    (["builds", "show", "b_nothing"], "there is no build b_nothing", 1),
    (["frobnicate"], "there is no command frobnicate", 2),
]


async def test_what_cannot_be_done_is_an_error_with_a_hint_and_never_a_traceback(
    tmp_path: Path, folder: Path
) -> None:
    async with stage(tmp_path) as on:
        for arguments, text, code in MISTAKES:
            done = on.run(*[str(folder) if one == "." else one for one in arguments])

            assert done.returncode == code, done.stderr
            assert done.stderr.startswith("error: ")
            assert text in done.stderr
            assert "\nhint: " in done.stderr
            assert "Traceback" not in done.stderr
            assert "urn:" not in done.stderr


async def test_a_build_that_falls_back_says_so_in_the_first_line_of_its_log(
    tmp_path: Path, folder: Path
) -> None:
    async with stage(tmp_path, time_scale=0.5) as on:
        runner = await on.join("desktop")
        await runner.kill()

        async def offline() -> bool:
            async with on.client() as owner:
                runners = (await owner.capabilities()).runners
            return any(r.name == "desktop" and not r.online for r in runners)

        await eventually(offline, within=PATIENCE_SECONDS, what="desktop is seen to be offline")
        done = on.run("build", str(folder))
        log = on.run("builds", "log", "@")

    assert done.returncode == 0, done.stderr
    first = log.stdout.splitlines()[0]
    assert first.startswith("note: built here instead of on a runner: desktop is offline")
    assert first in done.stderr


@pytest.mark.usefixtures("nobody_named")
async def test_without_a_control_plane_one_is_there_for_the_one_build(
    tmp_path: Path, folder: Path
) -> None:
    on = Stage(tmp_path, 7443)
    environment = {"PIERHEAD_URL": ""}

    done = on.run("build", str(folder), **environment)

    assert done.returncode == 0, done.stderr
    assert "no control plane yet: building once on this machine" in done.stderr
    assert "hello  built here in" in done.stderr
    assert REFERENCE.match(done.stdout)


@pytest.mark.usefixtures("nobody_named")
async def test_where_the_usual_port_is_taken_another_one_will_do(
    tmp_path: Path, folder: Path
) -> None:
    on = Stage(tmp_path, free_port())

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 7443):
        building = _build_alone(on, folder, usual=True)
        found, said = await _said(building)

    assert building.returncode == 0, said
    assert REFERENCE.match(found)
    assert not found.startswith("127.0.0.1:7443/")


def _build_alone(on: Stage, folder: Path, *, usual: bool = False) -> "subprocess.Popen[str]":
    """Begin to build where no control plane was chosen; `usual`: nor a port, ever."""
    config = on.folder / "config"
    config.mkdir(exist_ok=True)
    if not usual:
        (config / "local.json").write_text(json.dumps({"url": on.url}))
    return subprocess.Popen(
        [BIN / "pierhead", "build", "--no-cache", str(folder)],
        env={**os.environ, **on.environment, "PIERHEAD_URL": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def _said(process: "subprocess.Popen[str]") -> tuple[str, str]:
    return await asyncio.to_thread(process.communicate, timeout=2 * PATIENCE_SECONDS)


def _has_builds(on: Stage, number: int) -> Callable[[], Awaitable[bool]]:
    """Ask whether the control plane that is there for now has so many builds."""

    async def has() -> bool:
        url = noted_url(on.folder / "data") if (on.folder / "data").exists() else None
        if url is None:
            return False
        async with RouterClient(url, token=on.token) as owner:
            return len((await owner.builds()).builds) == number

    return has


def _is_running(step: HeldStep) -> Callable[[], Awaitable[bool]]:
    async def is_running() -> bool:
        return step.is_running

    return is_running


async def _is_gone(on: Stage) -> bool:
    return noted_url(on.folder / "data") is None


@pytest.mark.usefixtures("nobody_named")
@pytest.mark.parametrize("killed", [False, True])
async def test_a_control_plane_for_one_build_stays_for_another_that_came_meanwhile(
    tmp_path: Path, folder: Path, killed: bool
) -> None:
    on = Stage(tmp_path, free_port())
    with held_step() as step:
        (folder / "Dockerfile").write_text(HELLO + step.line)
        first = _build_alone(on, folder)
        await eventually(_is_running(step), within=PATIENCE_SECONDS, what="the first one builds")
        detached = on.run("build", "--detach", str(folder), PIERHEAD_URL="")
        (folder / "Dockerfile").write_text(HELLO)
        second = _build_alone(on, folder)
        await eventually(
            _has_builds(on, 2), within=PATIENCE_SECONDS, what="the second one is there"
        )
        if killed:
            first.kill()
    _, said_first = await _said(first)
    found, said = await _said(second)

    assert killed or first.returncode == 0, said_first
    assert second.returncode == 0, said
    assert REFERENCE.match(found)
    assert "no control plane yet" not in said
    assert "does not answer" not in said
    assert (detached.returncode, detached.stdout) == (3, "")
    assert "no control plane is here that would go on with the build" in detached.stderr
    what = "it ends when nobody uses it"
    await eventually(lambda: _is_gone(on), within=PATIENCE_SECONDS, what=what)


@pytest.mark.usefixtures("nobody_named")
@pytest.mark.parametrize("usual", [False, True])
async def test_builds_that_begin_at_once_share_one_control_plane(
    tmp_path: Path, folder: Path, usual: bool
) -> None:
    on = Stage(tmp_path, free_port())

    with held_step() as step:
        (folder / "Dockerfile").write_text(HELLO + step.line)
        begun = [_build_alone(on, folder, usual=usual) for _ in range(3)]
        await eventually(_has_builds(on, 3), within=PATIENCE_SECONDS, what="all of them are there")
        ending = asyncio.gather(*map(_said, begun))

        async def all_ended() -> bool:
            step.let_go()  # each build has its own
            return ending.done()

        await eventually(all_ended, within=2 * PATIENCE_SECONDS, what="all of them end")
        ended = await ending

    assert [one.returncode for one in begun] == [0, 0, 0], ended
    assert sum("no control plane yet" in said for _, said in ended) == 1
    what = "it ends when nobody uses it"
    await eventually(lambda: _is_gone(on), within=PATIENCE_SECONDS, what=what)


async def test_status_and_why_say_who_can_build(tmp_path: Path, folder: Path) -> None:
    async with stage(tmp_path) as on:
        assert on.run("build", "-q", str(folder)).returncode == 0
        status = on.run("status")
        why = on.run("builds", "why", "@")
        listed = on.run("builds", "ls")

    assert "control plane ready" in status.stdout
    assert "isolation full" in status.stdout
    assert "-> succeeded on here" in why.stdout
    assert "succeeded" in listed.stdout
