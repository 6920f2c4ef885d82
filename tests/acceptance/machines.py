"""Several machines on one: each has a network, a host name and folders of its own.

    net A   plane, desktop, laptop, gate
    net B   office, gate

Whoever is on B alone reaches A only through what the gate passes on, and it passes on nothing by
itself. Needs root. All that was made is removed at the end.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.sight import all_below, words_in

from .stage import BIN

TYPE_SECONDS = 180
A, B = "a", "b"
NETS = {"plane": A, "desktop": A, "laptop": A, "gate": A + B, "office": B}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(slots=True)
class Machine:
    """One machine, and somebody at its keyboard."""

    name: str
    namespace: str
    folder: Path
    addresses: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Its only address."""
        (found,) = self.addresses.values()
        return found

    @property
    def own(self) -> dict[str, str]:
        """The environment of its processes: nothing comes from the machine of the test."""
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {
            "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "PIERHEAD_DATA": str(self.folder / "data"),
            "PIERHEAD_CONFIG": str(self.folder / "config"),
            "PIERHEAD_RUNNER_STATE": str(self.folder / "runner"),
            **self.environment,
        }

    def inside(self, *words: str | Path) -> list[str]:
        """Return a command as it runs on this machine."""
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "sh", "-c"]
        return [*enter, 'hostname "$0"; exec "$@"', self.name, *map(str, words)]

    def run(self, *words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on it to its end."""
        return subprocess.run(
            self.inside(*words),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=self.own,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=TYPE_SECONDS,
        )

    def type(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run `pierhead` on it; return the result, and fail with its story."""
        done = self.run("pierhead", *words, stdin=stdin)
        assert done.returncode == 0, f"{self.name}$ pierhead {words}\n{done.stderr}\n{self.logs()}"
        return done.stdout.strip()

    def start(self, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start a process on it that is ended with the machine."""
        with (self.folder / "started.log").open("ab") as log:
            process = subprocess.Popen(
                self.inside(*words),
                env=self.own,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def logs(self) -> str:
        """Return what its services said."""
        found = sorted(path for path in all_below(self.folder) if path.suffix == ".log")
        return "\n".join(f"== {path}\n{words_in(path)[-3000:]}" for path in found)

    def turn_off(self) -> None:
        """End all that runs on it, and take its network away."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for command in (("runner", "stop"), ("up", "--stop")):
            with contextlib.suppress(subprocess.TimeoutExpired):  # what is left is killed
                self.run("pierhead", *command)
        left = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False
        )
        for pid in left.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)


@contextmanager
def machines(folder: Path) -> Iterator[dict[str, Machine]]:
    """Open the machines of the picture above."""
    mark = f"pt{os.getpid()}"
    number = 10 + os.getpid() % 200
    switch, made = f"{mark}-sw", []
    ip("netns", "add", switch)
    try:
        for net in (A, B):
            ip("-n", switch, "link", "add", f"br{net}", "type", "bridge")
            ip("-n", switch, "link", "set", f"br{net}", "up")
        for index, (name, nets) in enumerate(NETS.items()):
            addresses = {net: f"10.{number}.{'ab'.index(net)}.{10 + index}" for net in nets}
            made.append(_machine(folder, name, f"{mark}-{name}", switch, addresses))
        yield {machine.name: machine for machine in made}
    finally:
        for machine in made:
            machine.turn_off()
        ip("netns", "del", switch)


def _machine(
    folder: Path, name: str, namespace: str, switch: str, addresses: dict[str, str]
) -> Machine:
    ip("netns", "add", namespace)
    machine = Machine(name, namespace, folder / name, addresses)
    machine.folder.mkdir()
    ip("-n", namespace, "link", "set", "lo", "up")
    for number, (net, address) in enumerate(addresses.items()):
        port = f"{name[:6]}{net}"
        ip(*f"-n {switch} link add {port} type veth peer name eth{number} netns".split(), namespace)
        ip(*f"-n {switch} link set {port} master br{net} up".split())
        ip(*f"-n {namespace} address add {address}/24 dev eth{number}".split())
        ip(*f"-n {namespace} link set eth{number} up".split())
    return machine
