"""The command, a control plane and a builder, all real: what people type and what they see."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.held_step import held_step
from tests.ports import free_port

PIERHEAD = Path(sys.executable).with_name("pierhead")
WITHIN = 180.0
DOCKERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "echo", "hello from the build"]
"""
SLOW = DOCKERFILE + 'RUN ["/bin/busybox", "sleep", "240"]\n'
FAILING = DOCKERFILE + 'RUN ["/bin/busybox", "cat", "/nothing-here"]\n'


@dataclass(frozen=True, slots=True)
class Machine:
    """One user's machine: private folders, and a control plane once `up` was run."""

    folder: Path
    port: int

    @property
    def environment(self) -> dict[str, str]:
        mine = {
            "PIERHEAD_DATA": str(self.folder / "data"),
            "PIERHEAD_CONFIG": str(self.folder / "config"),
            "PIERHEAD_URL": "",  # it is found, as `up` has noted it
        }
        return {**os.environ, **mine}

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PIERHEAD, *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WITHIN,
            check=False,
        )

    def context(self, dockerfile: str) -> Path:
        root = self.folder / "web"
        root.mkdir(exist_ok=True)
        (root / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
        (root / "busybox").chmod(0o755)
        (root / "Dockerfile").write_text(dockerfile)
        return root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("machine"), free_port())
    up = machine.type("up", "--port", str(machine.port), "--host", "127.0.0.1")
    try:
        assert up.returncode == 0, up.stderr
        yield machine
    finally:
        assert machine.type("up", "--stop").returncode == 0


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, machine: Machine, *words: str) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            environment = {**machine.environment, "TERM": "xterm"}
            os.execve(PIERHEAD, [str(PIERHEAD), *words], environment)
        self.seen = b""

    def until(self, pattern: bytes) -> bytes:
        """Read until something is seen; nothing is read beyond the end."""
        deadline = time.monotonic() + WITHIN
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, self.seen
            assert self._more(), self.seen
        return found[0]

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        deadline = time.monotonic() + WITHIN
        while self._more():
            assert time.monotonic() < deadline, self.seen
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _more(self) -> bool:
        if not select.select([self.descriptor], [], [], 1)[0]:
            return True
        data = b""
        with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
            data = os.read(self.descriptor, 4096)
        self.seen += data
        return bool(data)


def test_a_build_gives_a_reference_and_its_story_can_be_read_again(machine: Machine) -> None:
    built = machine.type("build", "-t", "web:1", str(machine.context(DOCKERFILE)))
    log = machine.type("builds", "log", "@")
    watched = machine.type("builds", "watch", "@")
    shown = machine.type("builds", "show", "@")

    assert built.returncode == 0, built.stderr
    assert re.fullmatch(rf"127\.0\.0\.1:{machine.port}/web@sha256:[0-9a-f]{{64}}\n", built.stdout)
    assert "context   2 files, " in built.stderr
    assert "where     here" in built.stderr
    assert built.stderr.splitlines()[-1].startswith("web  built here in ")
    assert "hello from the build" in log.stdout
    assert watched.stdout == built.stdout
    assert built.stdout.strip() in shown.stdout


def test_quiet_prints_the_reference_alone(machine: Machine) -> None:
    built = machine.type("build", "-q", str(machine.context(DOCKERFILE)))
    assert built.stderr == ""
    assert built.stdout.count("\n") == 1


def test_a_failing_step_is_shown_with_what_it_said(machine: Machine) -> None:
    built = machine.type("build", str(machine.context(FAILING)))
    assert built.returncode == 1
    assert built.stdout == ""
    assert "error: web failed at 4/4 RUN " in built.stderr
    assert ": a command ended with exit code 1\n" in built.stderr
    assert "/nothing-here" in built.stderr
    assert "\nhint: " in built.stderr
    assert "urn:" not in built.stderr
    assert "Traceback" not in built.stderr


def until_building(machine: Machine, build_id: str) -> None:
    deadline = time.monotonic() + WITHIN
    while '"phase":"building"' not in machine.type("builds", "show", build_id, "--json").stdout:
        assert time.monotonic() < deadline, machine.type("builds", "why", build_id)


def test_what_is_detached_is_cancelled_from_elsewhere(machine: Machine) -> None:
    detached = machine.type("build", "--detach", "--no-cache", str(machine.context(SLOW)))
    build_id = detached.stdout.strip()
    until_building(machine, build_id)
    cancelled = machine.type("builds", "cancel", build_id[:-1])

    assert detached.returncode == 0
    assert cancelled.returncode == 0, cancelled.stderr
    assert re.search(
        r"cancelling on here \.\.\. stopped in [0-9.]+ s; no process", cancelled.stderr
    )
    assert f"{build_id} " in machine.type("builds", "ls").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_interrupts_means_cancel(machine: Machine, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [PIERHEAD, "build", "--no-cache", str(machine.context(SLOW))],
        env=machine.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "where" not in (line := process.stderr.readline()):
        assert line, "the build ended before it began"
    process.send_signal(number)
    out, err = process.communicate(timeout=WITHIN)

    assert process.returncode == 130
    assert out == ""
    assert "cancelled" in err


def test_whoever_only_watches_stops_watching(machine: Machine) -> None:
    detached = machine.type("build", "--detach", "--no-cache", str(machine.context(SLOW)))
    terminal = Terminal(machine, "builds", "watch", "@")
    terminal.until(rb"STEP 4/4")
    terminal.type(b"\x03")
    terminal.until(rb"the build goes on. end it: pierhead builds cancel b_")

    assert terminal.end() == 130
    assert "building" in machine.type("builds", "ls").stdout
    assert machine.type("builds", "cancel", detached.stdout.strip()).returncode == 0


def test_two_interrupts_on_a_terminal_cancel(machine: Machine) -> None:
    terminal = Terminal(machine, "build", "--no-cache", str(machine.context(SLOW)))
    terminal.until(rb"where ")
    terminal.type(b"\x03")
    terminal.until(rb"\[d\]etach")
    terminal.type(b"\x03")

    assert terminal.end() == 130
    assert b"cancelled" in terminal.seen


def test_a_terminal_that_goes_away_is_not_asked(machine: Machine) -> None:
    terminal = Terminal(machine, "build", "--no-cache", str(machine.context(SLOW)))
    terminal.until(rb"where ")
    os.kill(terminal.pid, signal.SIGTERM)

    assert terminal.end() == 130
    assert b"[d]etach" not in terminal.seen


def test_a_terminal_shows_the_step_that_runs_and_for_how_long(machine: Machine) -> None:
    began = time.monotonic()
    terminal = Terminal(machine, "build", "--no-cache", str(machine.context(SLOW)))
    line = rb"\r\x1b\[K 4/4 RUN [^\r\n]* "
    # Which of its seconds are shown is the machine's affair.
    seen = terminal.until(line + rb"(?P<first>\d+) s(?s:.*)" + line + rb"(?!(?P=first) s)\d+ s")
    shown = [int(seconds) for seconds in re.findall(line + rb"(\d+) s", seen)]
    assert shown == sorted(shown)
    assert shown[-1] <= time.monotonic() - began
    terminal.type(b"\x03")
    terminal.until(rb"\[d\]etach")
    terminal.type(b"c")

    assert terminal.end() == 130


def test_a_build_goes_on_after_detach_on_a_terminal(machine: Machine) -> None:
    terminal = Terminal(machine, "build", "--no-cache", str(machine.context(SLOW)))
    terminal.until(rb"where ")
    terminal.type(b"\x03")
    build_id = terminal.until(rb"b_[a-z0-9]{8}").decode()
    terminal.until(rb"\[d\]etach")
    terminal.type(b"x")
    terminal.until(rb"(?s)\[d\]etach.*\[d\]etach")
    terminal.type(b"d")

    assert terminal.end() == 130
    shown = machine.type("builds", "show", build_id).stdout
    assert "cancel" not in shown
    assert machine.type("builds", "cancel", build_id).returncode == 0


def test_nobody_answers_at_an_address_that_was_chosen(tmp_path: Path) -> None:
    lonely = Machine(tmp_path, free_port())
    chosen = f"http://127.0.0.1:{lonely.port}"
    built = lonely.type("build", "--url", chosen, str(lonely.context(DOCKERFILE)))
    assert built.returncode == 3
    assert "error: no answer from http://127.0.0.1:" in built.stderr
    assert built.stderr.endswith("hint: pierhead up starts the control plane on this machine\n")


def test_up_again_is_no_second_control_plane(machine: Machine) -> None:
    again = machine.type("up", "--port", str(machine.port))
    assert again.returncode == 0
    assert "already" in again.stderr


def test_a_project_token_can_log_in_and_build_only_its_project(
    machine: Machine, tmp_path: Path
) -> None:
    assert machine.type("projects", "add", "web").returncode == 0
    token = tmp_path / "token"
    token.write_text(machine.type("projects", "tokens", "add", "web").stdout)
    guest = Machine(tmp_path, machine.port)
    url = f"http://127.0.0.1:{machine.port}"

    login = guest.type("login", url, "--token-file", str(token))
    mine = guest.type("build", "-q", "-t", "web", str(guest.context(DOCKERFILE)))
    other = guest.type("build", "-q", "-t", "other", str(guest.context(DOCKERFILE)))

    assert login.returncode == 0, login.stderr
    assert (tmp_path / "config" / "context.json").stat().st_mode & 0o777 == 0o600
    assert mine.returncode == 0, mine.stderr
    assert other.returncode == 1
    assert other.stderr.startswith("error: ")


def test_json_prints_the_problem_document(machine: Machine) -> None:
    shown = machine.type("builds", "show", "b_none", "--json")
    assert shown.returncode == 1
    assert '"type":"urn:pierhead:problem:not-found"' in shown.stdout
    assert shown.stderr == ""


def test_whoever_watches_late_sees_the_step_with_its_time_and_its_stage_by_name(
    machine: Machine,
) -> None:
    stages = DOCKERFILE.replace("scratch", "scratch AS base") + "FROM base AS web\n"
    with held_step() as step:
        folder = machine.context(stages + f"RUN {json.dumps(step.words)}\n")
        begun = machine.type("build", "--detach", "--no-cache", str(folder))
        assert begun.returncode == 0, begun.stderr
        since = _since_the_held_step(machine, begun.stdout.strip())
        while datetime.now(UTC) - since < timedelta(seconds=4):
            select.select([], [], [], 0.2)
        watching = Terminal(machine, "builds", "watch", "--progress", "auto", "@")
        seen = watching.until(rb"2/2 RUN [^\r\n]*?  \d+ (s|min)").decode()
        step.let_go()
        code = watching.end()

    assert code == 0
    assert _seconds(seen) >= 4
    lines = watching.seen.decode().splitlines()
    assert any(line.lstrip().startswith("[2/2] 1/2 FROM base AS web  ") for line in lines)
    ended = [line for line in lines if re.search(r"\[2/2\] 2/2 RUN .*  [\d. min]+ s$", line)]
    assert _seconds(ended[-1]) >= 4


def _seconds(line: str) -> float:
    """Return the time at the end of a line."""
    found = re.search(r"  (?:(\d+) min ?)?(?:([\d.]+) s)?$", line)
    assert found is not None, line
    return int(found[1] or 0) * 60 + float(found[2] or 0)


def _since_the_held_step(machine: Machine, build_id: str) -> datetime:
    """Return when the control plane saw the last step of two stages begin."""
    watching = subprocess.Popen(
        [PIERHEAD, "builds", "watch", "--json", build_id],
        env=machine.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    for line in watching.stdout:
        event = json.loads(line)
        if event["event"] == "step" and event["name"].startswith("[2/2] 2/2"):
            watching.terminate()
            watching.communicate(timeout=WITHIN)
            return datetime.fromisoformat(event["at"])
    raise AssertionError("the step did not begin")
