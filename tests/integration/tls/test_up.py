"""`up`, `add`, `join`, as typed on one machine: what is printed, and what is remembered."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pierhead.server.addresses import usual_address
from tests.acceptance.stage import BIN
from tests.held_step import HeldStep, held_step
from tests.ports import free_port

pytestmark = pytest.mark.timeout(600)
ADDRESS = usual_address() or "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Keyboard:
    """Somebody at a machine; it may have a network of its own."""

    folder: Path
    network: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        mine = {
            "PIERHEAD_DATA": str(self.folder / "data"),
            "PIERHEAD_CONFIG": str(self.folder / "config"),
            "PIERHEAD_RUNNER_STATE": str(self.folder / "runner"),
        }
        return {**{k: v for k, v in os.environ.items() if k != "PIERHEAD_URL"}, **mine}

    def command(self, *words: str) -> list[str]:
        there = [] if self.network is None else ["ip", "netns", "exec", self.network]
        return [*there, str(BIN / "pierhead"), *words]

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def wait_for(question: Callable[[], bool]) -> None:
    until = time.monotonic() + 180
    while not question():
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def vps(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Keyboard]:
    machine = Keyboard(tmp_path_factory.mktemp("vps"))
    up = machine.type("up", "--port", str(port))
    try:
        assert up.returncode == 0, up.stderr
        yield machine
    finally:
        assert machine.type("up", "--stop").returncode == 0


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Keyboard]:
    machine = Keyboard(tmp_path)
    try:
        yield machine
    finally:
        machine.type("runner", "stop")


def test_a_plan_says_what_would_be_and_leaves_nothing(tmp_path: Path) -> None:
    machine = Keyboard(tmp_path)
    planned = machine.type("up", "--plan", "--port", "7999")
    assert planned.returncode == 0
    assert f"data       {tmp_path / 'data'}   " in planned.stderr
    assert ":7999   (" in planned.stderr
    assert "service    would be " in planned.stderr
    assert list(tmp_path.iterdir()) == []


def test_up_again_is_fine_and_remembers_its_port(vps: Keyboard, port: int) -> None:
    again = vps.type("up")
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"https://{ADDRESS}:{port}\n"
    words = ("data ", "address ", "pin ", "builder ", "ports ", "service ", "You are the owner.")
    assert [word for word in words if f"\n{word}" not in "\n" + again.stderr] == []
    assert f"a control plane runs at http://127.0.0.1:{port} already" in again.stderr


def test_the_commands_of_the_machine_find_it_without_a_word(vps: Keyboard, port: int) -> None:
    status = vps.type("status")
    assert status.returncode == 0, status.stderr
    assert f"registry {ADDRESS}:{port}" in status.stdout
    elsewhere = vps.type("status", "--url", f"https://{ADDRESS}:{port}")
    # What its builder is at may have changed meanwhile.
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert elsewhere.stdout.splitlines()[0] == status.stdout.splitlines()[0]


def test_a_machine_joins_by_the_printed_code_and_is_named_to_who_waits(
    vps: Keyboard, desktop: Keyboard
) -> None:
    adding = vps.start("add", "desktop", "--builds", "--wait")
    assert adding.stdout is not None
    line = adding.stdout.readline()
    found = re.fullmatch(r"curl -LsSf .* https://\S+/join \| sh -s -- (ph1_\S+)\n", line)
    assert found is not None, line
    joined = desktop.type("join", "--yes", "--cpus", "1", "--memory", "1G", found[1])
    said = adding.communicate(timeout=240)[1]

    assert joined.returncode == 0, joined.stderr
    assert "starts     pierhead-runner: " in joined.stderr
    assert adding.returncode == 0, said
    assert re.search(r"desktop joined: linux/\w+, 1 core, 1\.1 GB, .* free, buildah ", said)
    assert desktop.type("runner", "stop").returncode == 0
    assert desktop.type("runner", "stop").returncode == 1


def test_who_stops_waiting_leaves_the_code_good(vps: Keyboard, desktop: Keyboard) -> None:
    adding = vps.start("add", "laptop", "--builds", "--wait")
    assert adding.stdout is not None
    assert adding.stderr is not None
    code = adding.stdout.readline().split()[-1]
    while "waiting for laptop" not in adding.stderr.readline():
        continue
    adding.send_signal(signal.SIGINT)
    said = adding.communicate(timeout=120)[1]

    assert adding.returncode == 130
    assert "the code stays good" in said
    assert desktop.type("join", "--no-service", code).returncode == 0


def test_another_port_is_taken_up_by_the_next_up(vps: Keyboard, port: int) -> None:
    other = free_port()
    moved = vps.type("up", "--port", str(other))
    back = vps.type("up", "--port", str(port))
    assert moved.returncode == 0, moved.stderr
    assert moved.stdout == f"https://{ADDRESS}:{other}\n"
    assert back.returncode == 0, back.stderr
    assert vps.type("status").returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--host", "foo.invalid"), "error: --host has to be an address of this machine"),
        (("--host", "203.0.113.9"), "error: --host has to be an address of this machine"),
        (("--domain", "203.0.113.9"), "error: --domain has to be a name of the DNS"),
        (("--domain", "a.invalid", "--behind-proxy", "10.0.0.1"), "error: a certificate by ACME"),
    ],
)
def test_a_mistake_leaves_the_one_that_runs_alone(
    vps: Keyboard, words: tuple[str, ...], says: str
) -> None:
    before = vps.type("up")

    mistaken = vps.type("up", *words)
    after = vps.type("up")

    assert mistaken.returncode == 2
    assert mistaken.stderr.startswith(says)
    assert (after.returncode, after.stdout) == (0, before.stdout)
    assert "runs at" in after.stderr


def test_a_start_that_fails_brings_back_what_ran(vps: Keyboard) -> None:
    before = vps.type("up")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        failed = vps.type("up", "--port", str(taken.getsockname()[1]))
    after = vps.type("up")

    assert failed.returncode == 3
    assert "it runs again as before" in failed.stderr
    assert (after.returncode, after.stdout) == (0, before.stdout)


def test_four_at_once_start_one_which_can_be_stopped(tmp_path: Path) -> None:
    machine = Keyboard(tmp_path)
    port = free_port()
    ups = [machine.start("up", "--host", "127.0.0.1", "--port", str(port)) for _ in range(4)]
    said = [up.communicate(timeout=240) for up in ups]
    stopped = machine.type("up", "--stop")

    assert [up.returncode for up in ups] == [0] * 4, said
    assert {out for out, _ in said} == {f"http://127.0.0.1:{port}\n"}
    assert stopped.returncode == 0, stopped.stderr
    assert machine.type("status", "--url", f"http://127.0.0.1:{port}").returncode == 3


def test_a_stop_names_the_builds_that_it_interrupts(tmp_path: Path) -> None:
    machine = Keyboard(tmp_path)
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (folder / "busybox").chmod(0o755)
    (folder / "Dockerfile").write_text(
        'FROM scratch\nCOPY busybox /busybox\nRUN ["/busybox", "sleep", "300"]\n'
    )
    up = machine.type("up", "--host", "127.0.0.1", "--port", str(free_port()))
    assert up.returncode == 0, up.stderr
    try:
        begun = machine.type("build", "--detach", str(folder))
        assert begun.returncode == 0, begun.stderr
        build_id = begun.stdout.strip()
        wait_for(lambda: "3/3" in machine.type("builds", "ls").stdout)
    finally:
        stopped = machine.type("up", "--stop")

    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stderr == (
        f"stopped; all data stays\nbuilds on this machine begin again then ({build_id})\n"
    )


def says(running: subprocess.Popen[str], begin: str) -> bool:
    """Wait until it says a line that begins so; it may end without."""
    assert running.stderr is not None
    return any(line.startswith(begin) for line in running.stderr)


def held(folder: Path, step: HeldStep) -> str:
    """Write what a build starts from whose step waits for us, and return its path."""
    (source := folder / "held").mkdir()
    (source / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (source / "busybox").chmod(0o755)
    (source / "Dockerfile").write_text(f"FROM scratch\nCOPY busybox /bin/busybox\n{step.line}")
    return str(source)


@pytest.mark.usefixtures("nobody_named")
def test_up_takes_the_place_of_one_that_is_there_for_a_build_alone(tmp_path: Path) -> None:
    machine = Keyboard(tmp_path)
    port = free_port()
    with held_step() as step:
        build = machine.start("build", "--progress", "plain", held(tmp_path, step))
        wait_for(lambda: step.is_running)
        up = machine.start("up", "--host", "127.0.0.1", "--port", str(port))
        try:
            assert says(up, "waiting    builds run in a control plane that")
            assert build.poll() is None
            step.let_go()
            built, came_up = build.communicate(timeout=240), up.communicate(timeout=240)
            assert build.returncode == 0, built
            assert up.returncode == 0, came_up
            assert came_up[0] == f"http://127.0.0.1:{port}\n"
            assert machine.type("status", "--url", f"http://127.0.0.1:{port}").returncode == 0
        finally:
            machine.type("up", "--stop")


@pytest.mark.usefixtures("nobody_named")
def test_a_build_waits_for_the_one_that_is_kept_and_just_starts(tmp_path: Path) -> None:
    machine = Keyboard(tmp_path)
    url = f"http://127.0.0.1:{free_port()}"
    up = machine.type("up", "--host", "127.0.0.1", "--port", url.rpartition(":")[2])
    try:
        assert up.returncode == 0, up.stderr
        pid = int((tmp_path / "data/pierhead.pid").read_text())
        with held_step() as step:
            source = held(tmp_path, step)
            os.kill(pid, signal.SIGSTOP)  # as if it were not yet there
            build = machine.start("build", "--progress", "plain", source)
            assert says(build, "waiting for the control plane that `pierhead up` keeps")
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: step.is_running)
            step.let_go()
            said = build.communicate(timeout=240)
        assert build.returncode == 0, said
        assert said[0].startswith(url.removeprefix("http://"))
    finally:
        stopped = machine.type("up", "--stop")
    assert stopped.returncode == 0, stopped.stderr


@pytest.mark.usefixtures("nobody_named")
def test_a_build_says_that_the_one_that_was_kept_has_ended_and_up_brings_it_back(
    tmp_path: Path,
) -> None:
    machine = Keyboard(tmp_path)
    up = machine.type("up", "--host", "127.0.0.1", "--port", str(free_port()))
    try:
        assert up.returncode == 0, up.stderr
        os.kill(int((tmp_path / "data/pierhead.pid").read_text()), signal.SIGKILL)
        with held_step() as step:
            build = machine.start("build", "--progress", "plain", held(tmp_path, step))
            assert says(build, "the control plane of `pierhead up` has ended")
            wait_for(lambda: step.is_running)
            again = machine.start("up")
            step.let_go()
            said = build.communicate(timeout=240)
        assert build.returncode == 0, said
        assert again.communicate(timeout=240)[0] == up.stdout
        assert again.returncode == 0
        assert machine.type("status", "--url", up.stdout.strip()).returncode == 0
    finally:
        stopped = machine.type("up", "--stop")
    assert stopped.returncode == 0, stopped.stderr


def test_what_somebody_else_started_is_named_and_not_stopped(tmp_path: Path) -> None:
    machine = Keyboard(tmp_path)
    port = free_port()
    serving = machine.start("serve", "--host", "127.0.0.1", "--port", str(port))
    try:
        wait_for(
            lambda: machine.type("status", "--url", f"http://127.0.0.1:{port}").returncode == 0
        )
        stopped = machine.type("up", "--stop")
        assert stopped.returncode == 1
        assert f"did not start what runs on {tmp_path / 'data'}, process " in stopped.stderr
        assert f"or: kill {serving.pid}" in stopped.stderr
        again = machine.type("up", "--host", "127.0.0.1", "--port", str(port))
        assert again.returncode == 0, again.stderr
    finally:
        serving.terminate()
        serving.communicate(timeout=120)


def test_a_control_plane_of_another_folder_is_not_taken_for_ours(
    vps: Keyboard, tmp_path: Path, port: int
) -> None:
    machine = Keyboard(tmp_path)
    up = machine.type("up", "--port", str(port))
    assert up.returncode == 3
    url = f"http://127.0.0.1:{port}"
    assert f"error: {url} is another control plane's, with a folder of its own" in up.stderr
    assert f"hint: end it where it was started, or take another: --port {port + 1}" in up.stderr
    assert "You are the owner" not in up.stderr
    assert vps.type("up").returncode == 0


def test_a_port_that_is_taken_is_an_error_with_a_hint(tmp_path: Path, port: int) -> None:
    machine = Keyboard(tmp_path)
    with contextlib.closing(socket.create_server(("0.0.0.0", 0))) as taken:
        number = taken.getsockname()[1]
        up = machine.type("up", "--port", str(number))
    assert up.returncode == 3
    assert f"error: cannot listen on 0.0.0.0:{number}: Address already in use" in up.stderr
    assert "hint: choose another: --port 7444" in up.stderr


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def mobile(tmp_path: Path) -> Iterator[Keyboard]:
    """A machine with a network of its own, so that its address can be changed."""
    name = f"phup{os.getpid()}"
    ip("netns", "add", name)
    machine = Keyboard(tmp_path, name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "add", "wan0", "type", "bridge")
        ip("-n", name, "link", "set", "wan0", "up")
        ip("-n", name, "address", "add", "203.0.113.7/24", "dev", "wan0")
        yield machine
    finally:
        try:
            machine.type("up", "--stop")
        finally:  # however long that took
            ip("netns", "delete", name)


def registry_of(machine: Keyboard) -> str:
    status = machine.type("status")
    assert status.returncode == 0, status.stderr
    return status.stdout.splitlines()[0].rpartition(" ")[2]


def test_another_address_of_the_machine_is_in_force_after_the_next_up(mobile: Keyboard) -> None:
    assert mobile.network is not None
    first = mobile.type("up")
    assert first.stdout == "https://203.0.113.7:7443\n", first.stderr
    ip("-n", mobile.network, "address", "flush", "dev", "wan0")
    ip("-n", mobile.network, "address", "add", "203.0.113.8/24", "dev", "wan0")

    planned = mobile.type("up", "--plan")
    before = registry_of(mobile)
    second = mobile.type("up")
    after = registry_of(mobile)
    third = mobile.type("up")

    assert "restart    the one that runs would be stopped" in planned.stderr
    assert before == "203.0.113.7:7443"
    assert second.stdout == "https://203.0.113.8:7443\n", second.stderr
    assert "until now it was 203.0.113.7:7443" in second.stderr
    assert after == "203.0.113.8:7443"
    assert third.stdout == second.stdout
    assert "runs at http://127.0.0.1:7443 already" in third.stderr


def test_a_public_url_is_in_force_until_it_is_taken_back(mobile: Keyboard) -> None:
    named = mobile.type("up", "--public-url", "https://nat.example.com")
    assert named.stdout == "https://nat.example.com\n", named.stderr
    assert registry_of(mobile) == "nat.example.com"

    back = mobile.type("up", "--public-url", "")

    assert back.stdout == "https://203.0.113.7:7443\n", back.stderr
    assert registry_of(mobile) == "203.0.113.7:7443"
    assert mobile.type("up").stdout == back.stdout


def test_what_others_started_by_another_address_is_told_as_it_is(mobile: Keyboard) -> None:
    serving = mobile.start("serve", "--public-url", "https://nat.example.com", "--no-here")
    try:
        wait_for(lambda: mobile.type("status").returncode == 0)
        up = mobile.type("up")
    finally:
        serving.terminate()
        serving.communicate(timeout=120)

    assert up.returncode == 1
    assert up.stdout == ""
    told = "is reached by nat.example.com, not by 203.0.113.7:7443, and `pierhead up` did not start"
    assert told in up.stderr
    hint = f"hint: end it where it was started, or: kill {serving.pid}; then pierhead up again\n"
    assert hint in up.stderr


def test_an_address_of_ipv6_is_told_to_name_no_images(mobile: Keyboard) -> None:
    assert mobile.network is not None
    ip("-n", mobile.network, "address", "add", "fd00::7/64", "dev", "wan0", "nodad")

    refused = mobile.type("up", "--public-url", "https://[fd00::7]:7443")
    up = mobile.type("up", "--host", "fd00::7")

    assert refused.returncode == 2
    assert refused.stderr == (
        "error: --public-url: docker, skopeo and FROM take no image name that begins with "
        "[fd00::7]\n\nhint: say a name that leads to the machine: https://build.example.com\n"
    )
    assert up.stdout == "https://[fd00::7]:7443\n", up.stderr
    assert "FROM take no name that begins with [fd00::7]:7443\n" in up.stderr
    assert "pierhead up --public-url https://NAME:7443\n" in up.stderr
    assert "docker --config" not in up.stderr
