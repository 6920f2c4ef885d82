"""`pierhead registries` as it is typed: where the token may come from, and where it never shows."""

import base64
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import anyio.to_thread
import msgspec
import pytest

from pierhead.protocol.problem import Problem
from pierhead.protocol.registry import RegistryAdded, RegistryPage, RegistryView
from tests.integration.mirror.others import PASSWORD, USER
from tests.integration.router.stage import House, TinyImage

PIERHEAD = Path(sys.executable).with_name("pierhead")
Real = tuple[str, TinyImage]


def environment(house: House, **more: str) -> dict[str, str]:
    mine = {"PIERHEAD_URL": house.url, "PIERHEAD_CONFIG": str(house.config), "NO_COLOR": "1"}
    return {**os.environ, **mine, **more}


async def typed(
    house: House, *words: str, given: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PIERHEAD, "registries", *words],
            env=environment(house, **more),
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return await anyio.to_thread.run_sync(run)


async def test_the_token_comes_from_a_file_or_the_input(
    house: House, real: Real, tmp_path: Path
) -> None:
    host, _ = real
    file = tmp_path / "token"
    file.write_text(PASSWORD + "\n")
    named = ("add", host, "--username", USER, "--plain-http")
    for way, given in ((("--token-file", str(file)), ""), (("--token-stdin",), PASSWORD + "\n")):
        done = await typed(house, *named, *way, given=given)
        assert done.returncode == 0, done.stderr
        assert "login works   what it may pull was not tried" in done.stdout
        assert "used by" in done.stdout
        assert "never sent to a runner" in done.stdout
        assert PASSWORD not in done.stdout + done.stderr


async def test_what_docker_knows_is_taken_over(house: House, real: Real, tmp_path: Path) -> None:
    host, _ = real
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    there = {"DOCKER_CONFIG": str(tmp_path)}
    done = await typed(house, "add", host, "--plain-http", "--from-docker", **there)
    assert done.returncode == 0, done.stderr

    other = await typed(house, "add", "ghcr.io", "--from-docker", **there)
    assert other.returncode == 2
    assert "docker is not logged in to ghcr.io" in other.stderr
    assert "docker login ghcr.io" in other.stderr


async def test_a_helper_of_docker_is_asked(house: House, real: Real, tmp_path: Path) -> None:
    host, _ = real
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "ofatest"}))
    answer = json.dumps({"Username": USER, "Secret": PASSWORD})
    helper = tmp_path / "docker-credential-ofatest"
    helper.write_text(f"#!/bin/sh\nread host\n[ \"$host\" = {host} ] && echo '{answer}'\n")
    helper.chmod(0o755)
    there = {"DOCKER_CONFIG": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = await typed(house, "add", host, "--plain-http", "--from-docker", **there)
    assert done.returncode == 0, done.stderr

    helper.unlink()
    done = await typed(house, "add", host, "--plain-http", "--from-docker", **there)
    assert done.returncode == 2
    assert "docker-credential-ofatest is not installed here" in done.stderr


async def test_it_is_asked_for_without_being_shown(house: House, real: Real) -> None:
    host, _ = real

    def on_terminal() -> tuple[int, str]:
        pid, terminal = pty.fork()
        if pid == 0:
            words = ["registries", "add", host, "--username", USER, "--plain-http"]
            os.execve(PIERHEAD, ["pierhead", *words], environment(house))
        seen, sent, until = "", False, time.monotonic() + 120
        while time.monotonic() < until:
            ready, _, _ = select.select([terminal], [], [], 1)
            try:
                seen += os.read(terminal, 4096).decode() if ready else ""
            except OSError:
                break
            if "not shown" in seen and not sent:
                os.write(terminal, PASSWORD.encode() + b"\n")
                sent = True
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen

    code, seen = await anyio.to_thread.run_sync(on_terminal)
    assert code == 0, seen
    assert f"Token of {USER} for {host} (not shown): " in seen
    assert "login works" in seen
    assert PASSWORD not in seen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--token-stdin", "--from-docker", "--username", USER), "exclude each other"),
        (("--token-stdin",), "a token is of no use without --username"),
        (("--username", USER, "--token-stdin"), "there is no token in it"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    house: House, words: tuple[str, ...], said: str
) -> None:
    done = await typed(house, "add", "ghcr.io", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "hint:" in done.stderr


async def test_all_of_it_as_json(house: House, real: Real) -> None:
    host, _ = real
    named = ("add", host, "--username", USER, "--plain-http", "--token-stdin", "--json")
    added = await typed(house, *named, "--image", "me/base:1", given=PASSWORD)
    assert msgspec.json.decode(added.stdout, type=RegistryAdded).pulled == f"{host}/me/base:1"
    listed = await typed(house, "ls", "--json")
    assert msgspec.json.decode(listed.stdout, type=RegistryPage).registries[0].host == host
    wrong = await typed(house, *named, given="no")
    assert wrong.returncode == 1
    assert msgspec.json.decode(wrong.stdout, type=Problem).slug == "upstream-refused"
    gone = await typed(house, "remove", host, "--json")
    assert msgspec.json.decode(gone.stdout, type=RegistryView).host == host
    for one in (added, listed, wrong, gone):
        assert PASSWORD not in one.stdout + one.stderr
