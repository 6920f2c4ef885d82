"""A runner of another platform, as one would be written by somebody else: over HTTP alone.

This machine is at home on one platform, and its own runner says so. This one says that it is
linux/arm64, fetches the context, lets buildah make an image for that platform of Dockerfiles that
run nothing, and pushes it as the distribution specification has it.
"""

import asyncio
import contextlib
import itertools
import json
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import httpx
import zstandard

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.digest import digest_of
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.lease import Acquire, Grant, Heartbeat
from pierhead.protocol.result import Envelope, PlatformImage
from pierhead.protocol.runner import AddRunner, Capabilities, Enroll, SessionRequest
from tests.integration.router.stage import push_blob, push_manifest

from .stage import PATIENCE_SECONDS, Stage

PLATFORM = "linux/arm64"
ABLE = Capabilities(
    platforms=(PLATFORM,),
    backend="buildah of a test",
    isolation="full",
    networks=("default", "none"),
    cpus=4,
    memory_bytes=8 * 1024**3,
)


@dataclass(kw_only=True)
class ForeignRunner:
    """What the runner `pi` knows."""

    on: Stage
    folder: Path
    credential: str = ""
    session_id: str = ""
    turns: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def join(self) -> None:
        async with self.on.client() as owner:
            code = parse_join_code((await owner.add_runner(AddRunner(name="pi"))).code)
        async with RouterClient(self.on.url) as anybody:
            wish = Enroll(secret=code.secret, nonce="pi-nonce", name="pi")
            self.credential = (await anybody.enroll(wish)).credential
        await self.begin()

    async def begin(self) -> None:
        wish = SessionRequest(process="pi-life-1", boot_id="boot-1", capabilities=ABLE)
        async with RouterClient(self.on.url, token=self.credential) as me:
            self.session_id = (await me.open_session(wish)).session_id

    async def take(self) -> Grant:
        """Wait for a build, for as long as any command is given."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._take()

    async def _take(self) -> Grant:
        while True:
            turn = next(self.turns)
            wish = Acquire(
                session_id=self.session_id,
                request_id=f"pi-request-{turn}",
                turn=turn,
                slots=1,
                hold_ms=5000,
            )
            async with RouterClient(self.on.url, token=self.credential) as me:
                grants = (await me.acquire(wish)).grants
            if grants:
                return grants[0]

    @contextlib.asynccontextmanager
    async def holding(self, grant: Grant) -> AsyncIterator[RouterClient]:
        """Keep a build alive; the router may be away meanwhile."""
        async with RouterClient(self.on.url, token=grant.token) as attempt:
            beating = asyncio.create_task(self._beat(attempt, grant))
            try:
                yield attempt
            finally:
                beating.cancel()

    async def _beat(self, attempt: RouterClient, grant: Grant) -> None:
        while True:
            with contextlib.suppress(Exception):
                await attempt.heartbeat(grant.build_id, grant.fence, Heartbeat(phase="building"))
            await asyncio.sleep(3)

    async def build(self, attempt: RouterClient, grant: Grant) -> Envelope:
        """Build, log and push; return what is to be reported."""
        packed = b"".join([part async for part in attempt.context(grant.build_id, grant.fence)])
        whole = zstandard.ZstdDecompressor().stream_reader(BytesIO(packed), read_across_frames=True)
        context, layout = self.folder / "context", self.folder / "layout"
        context.mkdir()
        with tarfile.open(fileobj=BytesIO(whole.read())) as tar:
            for entry in tar:
                assert entry.isfile(), "what is built here is a folder of files"
                (context / Path(entry.name).name).write_bytes(_content(tar, entry))
        log = await self._buildah(
            "bud", "--format", "oci", "--platform", PLATFORM, "-t", "localhost/pi", str(context)
        )
        await self._buildah("push", "localhost/pi", f"oci:{layout}")
        await attempt.append_log(grant.build_id, grant.fence, 0, zstandard.compress(log))
        return await self._pushed(grant, layout, log)

    async def _buildah(self, *arguments: str) -> bytes:
        root, run = str(self.folder / "root"), str(self.folder / "run")
        place = ["--root", root, "--runroot", run, "--storage-driver", "vfs"]
        process = await asyncio.create_subprocess_exec(
            "buildah",
            *place,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said

    async def _pushed(self, grant: Grant, layout: Path, log: bytes) -> Envelope:
        def blob(digest: str) -> bytes:
            return (layout / "blobs" / Path(digest.replace(":", "/"))).read_bytes()

        top = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
        manifest = json.loads(blob(top))
        parts = [manifest["config"]["digest"], *(one["digest"] for one in manifest["layers"])]
        headers = {"Authorization": f"Bearer {grant.token}"}
        async with httpx.AsyncClient(
            base_url=self.on.url, headers=headers, timeout=PATIENCE_SECONDS
        ) as http:
            for part in parts:
                assert (await push_blob(http, grant.repository, blob(part))).status_code == 201
            answer = await push_manifest(http, grant.repository, blob(top))
            assert answer.status_code == 201, answer.text
        image = PlatformImage(
            platform=PLATFORM,
            manifest_digest=top,
            config_digest=parts[0],
            size_bytes=sum(one["size"] for one in manifest["layers"]),
            layers=tuple(parts[1:]),
        )
        return Envelope(
            outcome="succeeded",
            manifest_digest=top,
            config_digest=parts[0],
            platforms=(image,),
            log_bytes=len(log),
            log_digest=digest_of(log),
        )


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    assert file is not None
    return file.read()
