"""A control plane that machines reach by TLS, as processes; and somebody who stands in between."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.joincode import JoinAddress, parse_join_code
from pierhead.protocol.runner import AddRunner
from pierhead.server.tls import Certificates
from tests.acceptance.stage import BIN, eventually

NAMES = ("127.0.0.1", "localhost")


@dataclass(slots=True)
class Plane:
    """A control plane on all addresses, and what its owner types."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        here = ["--public-url", self.url, "--no-here"]
        with (self.folder / "plane.log").open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "pierhead", "serve", "--host", "0.0.0.0", "--port", str(self.port), *here],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
            )

    @property
    def environment(self) -> dict[str, str]:
        config = {"PIERHEAD_CONFIG": str(self.folder / "config")}
        return {**config, "PIERHEAD_DATA": str(self.folder / "data"), "NO_COLOR": "1"}

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> str:
        return (self.folder / "config" / "ca.crt").read_text()

    @property
    def owner_token(self) -> str:
        return (self.folder / "config" / "token").read_text().strip()

    def on_its_machine(self) -> RouterClient:
        """Return what commands of its own machine use."""
        return RouterClient(f"http://127.0.0.1:{self.port}", token=self.owner_token)

    def owner(self) -> RouterClient:
        return RouterClient(self.url, token=self.owner_token, ca=self.ca)

    async def code(self, name: str) -> JoinAddress:
        async with self.on_its_machine() as owner:
            return parse_join_code((await owner.add_runner(AddRunner(name=name))).code)

    def runner(self, state: str) -> subprocess.Popen[bytes]:
        own = {"PIERHEAD_RUNNER_STATE": str(self.folder / state)}
        with (self.folder / f"{state}.log").open("ab") as log:
            return subprocess.Popen(
                [BIN / "pierhead", "runner", "start"],
                env={**os.environ, **self.environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def online(self, name: str) -> None:
        async def is_there() -> bool:
            async with self.on_its_machine() as owner:
                runners = (await owner.capabilities()).runners
            return any(runner.name == name and runner.online for runner in runners)

        await eventually(is_there, within=120, what=f"{name} is online")

    def type(
        self, *words: str, config: str = "config", within: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Type a command: on its own machine, or on another one with a folder of its own."""
        own = {"PIERHEAD_CONFIG": str(self.folder / config)}
        here = {"PIERHEAD_URL": f"http://127.0.0.1:{self.port}"} if config == "config" else {}
        return subprocess.run(
            [BIN / "pierhead", *words],
            env={**os.environ, **self.environment, **own, **here},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    def examine(self, state: str) -> subprocess.CompletedProcess[str]:
        """Let the doctor look at a machine."""
        own = {"PIERHEAD_RUNNER_STATE": str(self.folder / state)}
        return subprocess.run(
            [BIN / "pierhead", "doctor"],
            env={**os.environ, **self.environment, **own},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def join(self, code: JoinAddress, state: str, *more: str) -> subprocess.CompletedProcess[str]:
        own = {"PIERHEAD_RUNNER_STATE": str(self.folder / state)}
        return subprocess.run(
            [BIN / "pierhead", "join", "--no-service", str(code), *more],
            env={**os.environ, **self.environment, **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


async def ready(plane: Plane) -> None:
    async def answers() -> bool:
        assert plane.process.poll() is None, (plane.folder / "plane.log").read_text()
        with contextlib.suppress(PierheadError, OSError):
            async with plane.owner() as owner:
                await owner.projects()
                return True
        return False

    await eventually(answers, within=120, what=f"{plane.url} answers")


@dataclass(slots=True)
class Stranger:
    """Somebody in between, with certificates of their own, who keeps all that they can read."""

    certificates: Certificates
    shown: bytes  # the authority that it shows to whoever asks
    port: int = 0
    seen: bytes = b""

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.shown)
        while data := await reader.read(65536):
            self.seen += data
            writer.write(head + self.shown)
        writer.close()


@asynccontextmanager
async def stranger(
    folder: Path, shown: bytes | None = None, *, kind: type[Stranger] = Stranger, tls: bool = True
) -> AsyncIterator[Stranger]:
    certificates = Certificates(folder / "stranger", NAMES, now=datetime.now(UTC))
    between = kind(certificates, shown or certificates.authority)
    context = certificates.context if tls else None
    server = await asyncio.start_server(between.serve_one, "127.0.0.1", 0, ssl=context)
    between.port = server.sockets[0].getsockname()[1]
    try:
        yield between
    finally:
        server.close()
