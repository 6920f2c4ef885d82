"""A Docker engine to pull and run images with: one that answers, else one of our own.

Our own runs in network, mount and process namespaces of its own: two daemons in one network
namespace take each other's bridge away. Its loopback reaches one port of this machine's loopback,
the registry's, through a relay. It ends with everything that it started.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RELAY: Final = Path(__file__).with_name("relay.py")
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
OWN: Final = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# $1: folder, $2: port, $3: python, $4: relay, $5: cgroup. The first process of the namespace is
# this shell: when it ends, the kernel ends all the others.
INSIDE: Final = """
set -eu
ip link set lo up
mount -t tmpfs tmpfs /run
"$3" "$4" "$2" "$1/relay.sock" &
dockerd --host "unix://$1/docker.sock" --data-root "$1/data" --exec-root "$1/exec" \
  --pidfile "$1/docker.pid" --cgroup-parent "$5" --log-level warn \
  --bridge none --iptables=false --ip-masq=false &
daemon=$!
trap 'kill "$daemon"; wait "$daemon"; exit 0' TERM
wait "$daemon"
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that answers."""

    name: str  # for people
    command: tuple[str, ...]  # the client, pointed at it
    own: bool

    def run(self, *arguments: str | Path) -> str:
        """Run a command of the client and return what it printed."""
        done = subprocess.run(
            [*self.command, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout


def answers(command: tuple[str, ...]) -> bool:
    """Say whether a daemon is behind the client."""
    asked = [*command, "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def engine(folder: Path, registry_port: int, login: Path) -> Iterator[Engine]:
    """Give an engine that can pull from the registry on a port of loopback.

    Raises:
        RuntimeError: none answers and none could be started.
    """
    usual = ("docker", "--config", str(login))
    if shutil.which("docker") and answers(usual):
        yield Engine("the Docker engine of this machine", usual, own=False)
        return
    with own_engine(folder, registry_port, login) as started:
        yield started


@contextlib.contextmanager
def own_engine(folder: Path, registry_port: int, login: Path) -> Iterator[Engine]:
    """Start a daemon in namespaces of its own, and end it.

    Raises:
        RuntimeError: it did not answer in time; the end of its log says why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "relay.sock").unlink(missing_ok=True)
    inside = ["sh", "-c", INSIDE, "engine", str(folder), str(registry_port), sys.executable]
    relay = [sys.executable, str(RELAY), str(folder / "relay.sock"), str(registry_port)]
    path, cgroup = f"{os.environ['PATH']}:/usr/sbin:/sbin", f"pierhead-engine-{os.getpid()}"
    command = ("docker", "--config", str(login), "--host", f"unix://{folder}/docker.sock")
    with (folder / "log").open("ab") as log:
        daemon = subprocess.Popen(
            ["unshare", *OWN, *inside, str(RELAY), cgroup],
            env={**os.environ, "PATH": path},
            stdout=log,
            stderr=log,
        )
        carrier = subprocess.Popen(relay, stdout=log, stderr=log)
    try:
        _wait_for(daemon, command, folder / "log")
        yield Engine("a Docker engine started for this", command, own=True)
    finally:
        for process in (daemon, carrier):
            _end(process)
        _remove_cgroup(cgroup)


def _wait_for(daemon: "subprocess.Popen[bytes]", command: tuple[str, ...], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers(command):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"dockerd does not answer:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    # What unshare started is its child, and dies with it; asked first, so that it tidies up.
    with contextlib.suppress(ProcessLookupError):
        for pid in _children(process.pid) or [process.pid]:
            os.kill(pid, signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _remove_cgroup(name: str) -> None:
    """Remove the cgroup below which our daemon made its own, in every hierarchy."""
    # Other cgroups come and go meanwhile: `os.walk` passes over them, `Path.glob` fails.
    for place, folders, _ in os.walk("/sys/fs/cgroup"):
        if name not in folders:
            continue
        folders.remove(name)
        for folder, _, _ in os.walk(Path(place, name), topdown=False):
            with contextlib.suppress(OSError):  # still in use: by whom, its owner will say
                os.rmdir(folder)
