"""A machine with a systemd that really runs: `nox -s systemd`, as root.

The machine is a debootstrap root with process, mount and control-group namespaces of its own, in
which systemd is process 1. On it somebody types what the how-to page says: `up`, `add`, `join` with
and without root, `doctor`, `build`, `runner stop`; then it is started again. This machine's network
is its network, and this clone is mounted into it.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pierhead.runner.adapters.probe import write_context
from tools.bare import CACHE as BARE
from tools.bare import ROOT, SUITE, environment, run

CACHE: Final = BARE.with_name("booted.tar")
PACKAGES: Final = "systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,python3,iproute2"
PORT: Final = "7791"
WITHIN: Final = 60.0
BOOT: Final = """
set -eu
root=$1; clone=$2
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs sys sys
mount -t tmpfs -o mode=0755 tmpfs dev
for name in null zero full random urandom tty; do
  touch dev/$name; mount --bind /dev/$name dev/$name
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=0755 tmpfs run
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 cgroup2 sys/fs/cgroup
else
  mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
  mkdir sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  for name in $(awk '$4 == 1 { print $1 }' /proc/cgroups); do
    mkdir sys/fs/cgroup/$name
    mount -t cgroup -o $name cgroup sys/fs/cgroup/$name 2>/dev/null || rmdir sys/fs/cgroup/$name
  done
fi
mkdir -p "$root$clone" .old
mount --rbind "$clone" "$root$clone"
pivot_root . .old
umount --lazy /.old
rmdir /.old
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
"""


@dataclass(slots=True)
class Machine:
    """A machine that can be started, typed on, and started again."""

    root: Path
    _process: subprocess.Popen[bytes] | None = None
    _pid: int = field(default=0)

    def start(self) -> None:
        """Start it, and wait until systemd says that it runs."""
        own = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        own += ["--uts", "--ipc", "--cgroup"]
        boot = ["unshare", *own, "sh", "-c", BOOT, "boot", str(self.root), str(ROOT)]
        self._process = subprocess.Popen(boot)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        eventually("it begins", lambda: bool(children.read_text().strip()))
        self._pid = int(children.read_text().split()[0])
        comm = Path(f"/proc/{self._pid}/comm")
        eventually("systemd begins", lambda: comm.read_text().strip() == "systemd")
        eventually("it runs", lambda: "running" in self.try_("systemctl", "is-system-running"))

    def end(self) -> None:
        """End everything on it, as at a power cut."""
        if self._process is not None:
            os.kill(self._pid, signal.SIGKILL)
            self._process.wait()

    def try_(self, *words: str, user: bool = False) -> str:
        """Type a command, and return what it says, whatever becomes of it."""
        return self._run(words, user).stdout

    def type(self, *words: str, user: bool = False) -> str:
        """Type a command that has to succeed."""
        done = self._run(words, user)
        print(f"$ {' '.join(words)}\n{done.stdout}", flush=True)
        assert done.returncode == 0, f"{words} ended with {done.returncode}"
        return done.stdout

    def refused(self, *words: str, user: bool = False) -> str:
        """Type a command that has to be refused."""
        done = self._run(words, user)
        print(f"$ {' '.join(words)}\n{done.stdout}", flush=True)
        assert done.returncode == 1, f"{words} ended with {done.returncode}"
        return done.stdout

    def _run(self, words: tuple[str, ...], user: bool) -> subprocess.CompletedProcess[str]:
        become = ["setpriv", "--reuid=me", "--regid=me", "--init-groups"] if user else []
        name, home = ("me", "/home/me") if user else ("root", "/root")
        own = {
            **environment(),
            "HOME": home,
            "USER": name,
            "XDG_RUNTIME_DIR": "/run/user/1000" if user else "/run",
            "PATH": f"{ROOT}/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        inside = ["nsenter", f"--target={self._pid}", "--all", *become]
        return subprocess.run(
            [*inside, *words],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def eventually(what: str, true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WITHIN
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {WITHIN:.0f} s: {what}")
        time.sleep(0.2)


@contextmanager
def machine() -> Iterator[Machine]:
    """Make a machine and start it; nothing of it stays."""
    if not CACHE.exists():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="pierhead-booted-") as scratch:
            fresh, unfinished = Path(scratch) / "root", CACHE.with_suffix(".part")
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, fresh)
            run("tar", "--create", "--numeric-owner", "--file", unfinished, "-C", fresh, ".")
            unfinished.replace(CACHE)
    with tempfile.TemporaryDirectory(prefix="pierhead-booted-") as scratch:
        root = Path(scratch) / "root"
        root.mkdir()
        run("tar", "--extract", "--numeric-owner", "--file", CACHE, "--directory", root)
        run("cp", "/etc/resolv.conf", root / "etc/resolv.conf")
        asyncio.run(write_context(root / "srv/tiny"))
        made = Machine(root)
        try:
            made.start()
            yield made
        finally:
            made.end()


def state_of(on: Machine, name: str) -> str:
    """Return how a node is, as the owner is told."""
    rows = [line.split() for line in on.try_("pierhead", "nodes").splitlines()]
    return next((row[1] for row in rows if row and row[0] == name), "")


def code_for(on: Machine, name: str) -> str:
    """Return a join code."""
    found = re.search(r"ph1_\S+", on.type("pierhead", "add", name, "--builds", "--no-wait"))
    assert found is not None
    return found[0]


def build_on(on: Machine, name: str) -> None:
    """Build on one node."""
    eventually(f"{name} is ready", lambda: state_of(on, name) == "ready")
    where = "built here" if name == "here" else f"built on {name}"
    assert where in on.type("pierhead", "build", "/srv/tiny", "--on", name)


def play_root(on: Machine) -> None:
    """Join as root, with packages to be installed; build; stop."""
    code = code_for(on, "desk")
    assert "installs   buildah" in on.type("pierhead", "join", code, "--plan")
    assert not (on.root / "usr/bin/buildah").exists()
    assert "pierhead-runner.service enabled and started" in on.type(
        "pierhead", "join", code, "--yes"
    )
    assert on.type("systemctl", "is-enabled", "pierhead-runner").strip() == "enabled"
    on.type("pierhead", "doctor")
    build_on(on, "desk")
    on.type("pierhead", "runner", "stop")
    assert state_of(on, "desk") == "stopped"
    assert on.try_("systemctl", "is-active", "pierhead-runner").strip() == "inactive"


def play_user(on: Machine) -> None:
    """Join as an ordinary user; nothing is used up by what is refused."""
    on.type("useradd", "--create-home", "me")
    on.type("loginctl", "enable-linger", "me")
    eventually("the user has a systemd", lambda: (on.root / "var/lib/systemd/linger/me").exists())
    code = code_for(on, "mine")
    assert "needs root" in on.refused("pierhead", "join", code, "--yes", user=True)
    lacks = on.refused("pierhead", "join", code, "--user", "--yes", user=True)
    found = re.search(r"hint: sudo (.*)$", lacks, re.MULTILINE)
    assert found is not None, lacks
    on.type(*found[1].split())
    on.type("pierhead", "join", code, "--user", "--yes", user=True)
    build_on(on, "mine")
    on.type("pierhead", "runner", "stop", user=True)
    assert state_of(on, "mine") == "stopped"


def main() -> int:
    """Play it, and say what was seen."""
    if os.geteuid() != 0:
        print("error: only root can start a machine\n\nhint: sudo nox -s systemd", file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    with machine() as on:
        said = on.type("pierhead", "up", "--port", PORT)
        assert "pierhead.service enabled and started" in said
        play_root(on)
        play_user(on)
        on.end()
        on.start()
        assert on.type("systemctl", "is-active", "pierhead").strip() == "active"
        build_on(on, "here")
        on.type("pierhead", "up", "--stop")
        assert on.try_("systemctl", "is-active", "pierhead").strip() == "inactive"
    print("all of it went well", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
