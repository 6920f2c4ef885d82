"""`make demo`: a control plane, a build, and the image pulled and run by a Docker engine.

Everything is done with the commands that a user has, in the folder `.demo`, beside whatever else
runs on this machine. The control plane is left running; `make clean-demo` ends it and removes the
folder. A second run takes up the control plane of the first.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Final

from tools.engine import Engine, engine

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / ".demo"
EXAMPLE: Final = ROOT / "examples" / "hello"
PIERHEAD: Final = Path(sys.executable).with_name("pierhead")
# Not the usual one of a control plane: whoever goes on to start one finds that free.
DEMO_PORT: Final = 7440
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0


class DemoFailed(Exception):
    """The demo cannot go on, and why."""


@dataclass(frozen=True, slots=True)
class Plane:
    """The demo's control plane: its process and its port."""

    pid: int
    began: str  # of the process, in clock ticks: numbers of processes are used again
    port: int

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes a command speak to it."""
        place = {"PIERHEAD_CONFIG": str(FOLDER / "config"), "PIERHEAD_URL": self.url}
        return {**os.environ, **place, "PIERHEAD_DATA": str(FOLDER / "data")}


def say(line: str = "") -> None:
    """Tell the story."""
    print(line, flush=True)


def began(pid: int) -> str:
    """Return when a process was started, or nothing when it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] != "Z":
            return fields[19]
    return ""


def answers(url: str) -> bool:
    """Say whether a control plane is there."""
    try:
        with urllib.request.urlopen(f"{url}/api/meta", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # what urllib raises is one, too
        return False


def running() -> Plane | None:
    """Return the control plane that an earlier run left."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        plane = Plane(**json.loads((FOLDER / "plane.json").read_text()))
        if began(plane.pid) == plane.began:
            return plane
    return None


def port_for_demo() -> int:
    """Return the demo's port, or another one when it is taken."""
    for port in (DEMO_PORT, 0):
        with contextlib.suppress(OSError), socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise DemoFailed("there is no free port on 127.0.0.1")


def start_plane() -> Plane:
    """Start a control plane that outlives this process, and wait until it answers."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    port = port_for_demo()
    place = {"PIERHEAD_CONFIG": str(FOLDER / "config"), "PIERHEAD_DATA": str(FOLDER / "data")}
    with (FOLDER / "plane.log").open("ab") as log:
        process = subprocess.Popen(
            [PIERHEAD, "serve", "--port", str(port)],
            env={**os.environ, **place},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    plane = Plane(process.pid, began(process.pid), port)
    (FOLDER / "plane.json").write_text(
        json.dumps(
            {
                "pid": plane.pid,
                "began": plane.began,
                "port": plane.port,
            }
        )
    )
    deadline = time.monotonic() + START_SECONDS
    while not answers(plane.url):
        if process.poll() is not None or time.monotonic() > deadline:
            log_end = (FOLDER / "plane.log").read_text()[-2000:]
            raise DemoFailed(f"the control plane does not start:\n{log_end}")
        time.sleep(0.05)
    return plane


def pierhead(plane: Plane, *arguments: str) -> str:
    """Run a command as a user would; its story is shown, its result returned."""
    say(f"$ pierhead {' '.join(arguments)}")
    done = subprocess.run(
        [PIERHEAD, *arguments],
        cwd=FOLDER,
        env=plane.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    say(done.stdout.rstrip())
    if done.returncode != 0:
        raise DemoFailed(f"pierhead {arguments[0]} ended with {done.returncode}")
    return done.stdout.strip()


def make_context() -> None:
    """Copy the example, and put a static program into it."""
    shutil.copytree(EXAMPLE, FOLDER / "hello", dirs_exist_ok=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise DemoFailed("there is no busybox: apt-get install busybox-static")
    shutil.copy(busybox, FOLDER / "hello" / "busybox")


def run_image(found: Engine, reference: str) -> None:
    """Pull the image by its digest and run it."""
    say(f"$ docker pull {reference}     ({found.name})")
    say(found.run("pull", "--quiet", reference).strip())
    say(f"$ docker run --rm {reference}")
    greeting = found.run("run", "--rm", "--network", "none", reference).strip()
    say(greeting)
    if "pierhead" not in greeting:
        raise DemoFailed("the image does not say what it was built to say")


def tell_the_end(plane: Plane, build: dict[str, object], reference: str, own_engine: bool) -> None:
    """Print what was made and what can be done with it."""
    login = FOLDER / "config" / "docker"
    say()
    say(f"built on   {build['runner']}")
    say(f"digest     {reference.rpartition('@')[2]}")
    say(f"reference  {reference}")
    say()
    say(f"The control plane goes on at {plane.url}. In this folder:")
    say(f"  export PIERHEAD_URL={plane.url} PIERHEAD_CONFIG={FOLDER / 'config'}")
    say("  .venv/bin/pierhead build PATH")
    say("  .venv/bin/pierhead builds ls")
    say("The image, for anybody on this machine:")
    say(
        f"  skopeo copy --src-tls-verify=false --authfile {login / 'config.json'}"
        f" docker://{reference} oci:hello"
    )
    if not own_engine:
        say(f"  docker --config {login} pull {reference}")
    say("All of it is removed by: make clean-demo")


def demo() -> None:
    """Show the whole way, from a folder to a running image."""
    plane = running() or start_plane()
    say(f"control plane  {plane.url}, everything in {FOLDER}")
    make_context()
    reference = pierhead(plane, "build", "-t", "hello:demo", "hello")
    view = subprocess.run(
        [PIERHEAD, "builds", "show", "@", "--json"],
        env=plane.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    with engine(FOLDER / "engine", plane.port, FOLDER / "config" / "docker") as found:
        run_image(found, reference)
    tell_the_end(plane, json.loads(view.stdout), reference, found.own)


def clean() -> None:
    """End the demo's control plane and remove its folder."""
    plane = running()
    if plane is not None:
        os.kill(plane.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while began(plane.pid) == plane.began:
            if time.monotonic() > deadline:
                os.kill(plane.pid, signal.SIGKILL)
            time.sleep(0.05)
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
        say(f"removed {FOLDER}")


def main() -> int:
    """Run or remove the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clean", action="store_true", help="end it and remove all of it")
    try:
        clean() if parser.parse_args().clean else demo()
    except (DemoFailed, RuntimeError) as error:
        print(f"error: {error}\n\nhint: the logs are in {FOLDER}; make clean-demo removes it all")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
