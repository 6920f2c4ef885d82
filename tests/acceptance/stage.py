"""Real processes in private folders and on private ports, started as an operator would.

Everything that was started is stopped at the end, whatever happened in between, and the logs of
all processes are in the folder of the stage.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pierhead.protocol.build import FINAL_STATES, BuildView
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.pack import Packed
from pierhead.protocol.client.retry import retrying
from pierhead.protocol.client.upload import upload
from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.plan import IfNobody, Plan, Submit
from pierhead.protocol.runner import AddRunner
from pierhead.runner.adapters.buildah import BuildahBackend
from tests.contexts import described
from tests.ports import free_port
from tests.sight import words_in

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
BUSYBOX = Path("/bin/busybox")
HELLO = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN echo "hello from a build" > /greeting
CMD ["/bin/busybox", "cat", "/greeting"]
"""
USUAL = Plan()
STOP_SECONDS = 20.0
# Longer than anything takes that goes well, on a machine that does much else.
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.02
NOTE = "isolates.json"


class Seen:
    """What one runner has found out of this machine: the next ones need not look again.

    Tests of the looking itself have no stage.
    """

    note: bytes | None = None

    @classmethod
    def lend(cls, state: Path) -> None:
        """Give it to a runner that has not begun."""
        if cls.note is not None:
            state.mkdir(parents=True, exist_ok=True)
            (state / NOTE).write_bytes(cls.note)

    @classmethod
    def keep(cls, state: Path) -> None:
        """Keep what a runner has found."""
        with contextlib.suppress(FileNotFoundError):
            cls.note = cls.note or (state / NOTE).read_bytes()


async def eventually(
    question: Callable[[], Awaitable[T | None]], *, within: float, what: str = ""
) -> T:
    """Ask until the answer is something true, and return it."""
    deadline = time.monotonic() + within
    while True:
        answer = await question()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {within} s: {what or question}"
        await asyncio.sleep(POLL_SECONDS)


@dataclass(slots=True)
class Service:
    """One process that is started, killed and started again on the same folder."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    state: Path | None = None  # of a runner: what it builds in
    killed: bool = False
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its output goes to its log."""
        assert self.process is None
        self.killed = False
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of what runs now."""
        assert self.process is not None
        return self.process.pid

    async def stop(
        self, number: signal.Signals = signal.SIGTERM, *, within: float = STOP_SECONDS
    ) -> int | None:
        """Send a signal, wait for the end, and return the exit code; what goes on is killed."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.send_signal(number)
        try:
            return await asyncio.to_thread(process.wait, within)
        except subprocess.TimeoutExpired:  # a runner that ends its builds first
            self.killed = True
            process.kill()
            return await asyncio.to_thread(process.wait)

    async def kill(self) -> None:
        """End it without a word."""
        self.killed = True
        await self.stop(signal.SIGKILL)

    async def sweep(self) -> None:
        """Remove what a killed runner left, as it would at its next start."""
        if self.killed and self.state is not None:
            left = BuildahBackend(self.state, slots=1, memory_bytes=None)
            assert (await left.sweep()).clean


@dataclass(slots=True)
class Stage:
    """A control plane and its runners."""

    folder: Path
    port: int
    time_scale: float = 1.0
    more: dict[str, str] = field(default_factory=dict)  # environment of every process
    tls: bool = False  # besides plain HTTP, at the same port
    plane: Service = field(init=False)
    services: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.time_scale == 1.0:
            command = [str(BIN / "pierhead"), "serve", "--port", str(self.port)]
        else:
            # Only tests make leases shorter, so the command has no option for it.
            place = ["--data", str(self.folder / "data"), "--config", str(self.folder / "config")]
            scaled = ["--port", str(self.port), "--time-scale", str(self.time_scale)]
            command = [sys.executable, "-m", "pierhead.router", *place, *scaled]
        if self.tls:
            command += ["--host", "0.0.0.0", "--public-url", self.secure_url]
        self.plane = Service(command, self.environment, self.folder / "plane.log")
        self.services.append(self.plane)

    @property
    def environment(self) -> dict[str, str]:
        """What tells every process of this stage where it belongs."""
        return {
            "PIERHEAD_DATA": str(self.folder / "data"),
            "PIERHEAD_CONFIG": str(self.folder / "config"),
            "PIERHEAD_URL": self.url,
            "NO_COLOR": "1",
            **self.more,
        }

    @property
    def url(self) -> str:
        """Where the control plane is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def secure_url(self) -> str:
        """Where it is by TLS."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The owner's token, as the control plane wrote it."""
        return (self.folder / "config" / "token").read_text().strip()

    @property
    def login(self) -> Path:
        """The folder of the login file that docker and skopeo understand."""
        return self.folder / "config" / "docker"

    @property
    def ca(self) -> Path:
        """The certificate of its own authority."""
        return self.folder / "config" / "ca.crt"

    def secure_client(self) -> RouterClient:
        """Return the owner's client by TLS."""
        return RouterClient(self.secure_url, token=self.token, ca=self.ca.read_text())

    def client(self, port: int | None = None) -> RouterClient:
        """Return the owner's client, straight or through another port."""
        url = f"http://127.0.0.1:{port}" if port else self.url
        return RouterClient(url, token=self.token)

    async def start_plane(self) -> None:
        """Start the control plane and wait until it answers."""
        if not (self.folder / "data").exists():
            Seen.lend(self.folder / "data" / "here")
        self.plane.start()

        async def answers() -> bool:
            assert self.plane.process is not None
            assert self.plane.process.poll() is None, self.plane.log.read_text()
            with contextlib.suppress(Unavailable):
                async with RouterClient(self.url) as anybody:
                    await anybody.meta()
                    return True
            return False

        await eventually(answers, within=PATIENCE_SECONDS, what=f"{self.url} answers")
        # As `pierhead up` notes it, for whoever names no control plane.
        (self.folder / "config" / "local.json").write_text(json.dumps({"url": self.url}))

    async def start_registry(self) -> Service:
        """Start the process of the registry, and wait until connections are passed to it."""
        place = ["--data", str(self.folder / "data"), "--config", str(self.folder / "config")]
        command = [sys.executable, "-m", "pierhead.router", "--only", "registry", *place]
        service = Service(command, self.environment, self.folder / "registry.log")
        self.services.append(service)
        service.start()
        await self.registry_listens()
        return service

    async def registry_listens(self) -> None:
        """Wait until connections are passed to the process of the registry."""

        async def listens() -> bool:
            # Its socket is there before it listens, and after it was killed.
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
                return end.connect_ex(str(self.folder / "data" / "registry.sock")) == 0

        what = "the registry's process listens"
        await eventually(listens, within=PATIENCE_SECONDS, what=what)

    async def join(
        self, name: str, *options: str, port: int | None = None, inside: Sequence[str] = ()
    ) -> Service:
        """Let a runner join, and start it; `port` is what it takes for the control plane's.

        `inside` is a command that runs the one that follows it.
        """
        state = self.folder / name
        own = {"PIERHEAD_RUNNER_STATE": str(state), "PIERHEAD_CONFIG": str(state / "config")}
        environment = {**self.environment, **own}
        async with self.client() as owner:
            code = (await owner.add_runner(AddRunner(name=name))).code
        if port:
            code = code.replace(f":{self.port}_", f":{port}_")
        joined = await asyncio.to_thread(self.run, "join", "--no-service", *options, code, **own)
        assert joined.returncode == 0, joined.stderr
        Seen.lend(state)
        command = [*inside, str(BIN / "pierhead"), "runner", "start"]
        service = Service(command, environment, self.folder / f"{name}.log", state)
        self.services.append(service)
        service.start()

        async def online() -> bool:
            async with self.client() as owner:
                runners = (await owner.capabilities()).runners
            return any(runner.name == name and runner.online for runner in runners)

        await eventually(online, within=PATIENCE_SECONDS, what=f"runner {name} is online")
        Seen.keep(state)
        return service

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a user of this control plane would."""
        return subprocess.run(
            [BIN / "pierhead", *arguments],
            env={**os.environ, **self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE_SECONDS,
        )

    def logs(self) -> str:
        """Return what all processes said."""
        return "\n".join(f"== {path.name}\n{words_in(path)}" for path in self.folder.glob("*.log"))


@asynccontextmanager
async def stage(
    folder: Path, *, time_scale: float = 1.0, more: dict[str, str] | None = None, tls: bool = False
) -> AsyncIterator[Stage]:
    """Open a stage with a running control plane; stop all that was started on it at the end."""
    opened = Stage(folder, free_port(), time_scale, more or {}, tls)
    try:
        await opened.start_plane()
        yield opened
    finally:
        for service in reversed(opened.services):
            await service.stop()
            await service.sweep()
        Seen.keep(folder / "data" / "here")


def hello(dockerfile: str = HELLO, **more: bytes) -> Packed:
    """Return a context of a Dockerfile and a static busybox."""
    files = {"Dockerfile": dockerfile.encode(), "busybox": BUSYBOX.read_bytes()}
    return described({**files, **more})


async def submit(
    client: RouterClient,
    context: Packed,
    *,
    key: str,
    project: str = "hello",
    plan: Plan = USUAL,
    if_nobody: IfNobody = "here",
) -> BuildView:
    """Submit a build, and again until there is an answer."""
    async for attempt in retrying(30):
        with attempt:
            there = (await upload(client, project, context)).context
            wanted = Submit(project=project, plan=plan, context=there, key=key, if_nobody=if_nobody)
            return await client.submit(wanted)
    raise AssertionError("retrying ends by returning or raising")


async def finished(
    client: RouterClient, build_id: str, *, within: float = PATIENCE_SECONDS
) -> BuildView:
    """Wait for the end of a build, over restarts of the control plane."""

    async def ended() -> BuildView | None:
        with contextlib.suppress(PierheadError):
            view = await client.build(build_id)
            return view if view.state in FINAL_STATES else None
        return None

    return await eventually(ended, within=within, what=f"{build_id} ends")
