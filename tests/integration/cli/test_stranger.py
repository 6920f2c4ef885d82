"""Another user of this machine listens where its control plane was."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.test_commands import DOCKERFILE, Machine
from tests.ports import free_port

NOBODY = 65534
# Answers everything like a control plane of no age, and writes down what it was told.
LISTENING = """
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
os.setuid(int(sys.argv[2]))
class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, self.headers.get("Authorization"), flush=True)
        self.send_response(200)
        self.end_headers()
    do_POST = do_GET
HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine whose control plane has ended."""
    machine = Machine(tmp_path, free_port())
    config = tmp_path / "config"
    config.mkdir(mode=0o700)
    (config / "token").write_text("pho_" + "s" * 40)
    (config / "local.json").write_text(json.dumps({"url": f"http://127.0.0.1:{machine.port}"}))
    return machine


@pytest.fixture
def told(machine: Machine, tmp_path: Path) -> Iterator[Path]:
    """What somebody else was told who listens at its port now."""
    file = tmp_path / "told"
    with file.open("wb") as out:
        stranger = subprocess.Popen(
            # He could not start this Python himself, if it is in somebody's home.
            [sys.executable, "-c", LISTENING, str(machine.port), str(NOBODY)],
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    try:
        while not _answers(machine.port):
            assert stranger.poll() is None
            time.sleep(0.05)
        yield file
    finally:
        stranger.kill()
        stranger.wait()


def _answers(port: int) -> bool:
    ask = ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]
    return subprocess.run(ask, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "words", [("builds",), ("status",), ("add", "desktop", "--builds"), ("projects", "ls"), ("ca",)]
)
def test_the_owners_token_is_not_told_to_a_stranger(
    machine: Machine, told: Path, words: tuple[str, ...]
) -> None:
    done = machine.type(*words)

    assert done.returncode == 1
    who = f"at http://127.0.0.1:{machine.port} a process of nobody listens"
    assert done.stderr.startswith(f"error: {who}, who is not the control plane's user\n\nhint: ")
    assert told.read_text() == ""


@pytest.mark.usefixtures("nobody_named")
def test_a_build_does_without_him(machine: Machine, told: Path) -> None:
    built = machine.type("build", "-q", str(machine.context(DOCKERFILE)))

    assert built.returncode == 0, built.stderr
    assert told.read_text() == ""


def test_up_tells_him_nothing(machine: Machine, told: Path) -> None:
    up = machine.type("up", "--host", "127.0.0.1", "--port", str(machine.port))

    assert up.returncode == 3
    assert up.stderr.startswith(f"error: cannot listen on 127.0.0.1:{machine.port}: ")
    assert told.read_text() == ""


def test_a_token_that_somebody_gives_is_told_to_whom_they_name(
    machine: Machine, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIERHEAD_TOKEN", "mine")

    assert machine.type("builds").returncode != 0
    assert "Bearer mine" in told.read_text()
