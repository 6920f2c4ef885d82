"""A router on a real socket, with a clock that can be moved, and runners that follow a script."""

import asyncio
import contextlib
import functools
import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from pierhead.protocol.build import BuildView
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.upload import upload
from pierhead.protocol.digest import digest_of
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.lease import Acquire, Acquired, Grant, Held
from pierhead.protocol.plan import ContextRef, Plan, Submit
from pierhead.protocol.project import NewProject, NewToken
from pierhead.protocol.result import Envelope, PlatformImage
from pierhead.protocol.runner import (
    AddRunner,
    Capabilities,
    Enroll,
    RunnerView,
    SessionRelease,
    SessionRequest,
)
from pierhead.protocol.sealing import SessionKey
from pierhead.router.compose import Router, open_router
from pierhead.router.config import Settings
from pierhead.router.domain.reach import reach
from pierhead.server.serve import listen
from tests.contexts import described

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
PATIENCE = httpx.Timeout(90)
CONTEXT = described({"Dockerfile": b"FROM scratch\n"})


class MovableClock:
    """Begins at the machine's time and goes on as the test says: a slow machine ages nothing.

    Each look is a microsecond later than the one before, so that no two things are of one moment.
    """

    def __init__(self) -> None:
        self._now = datetime.now(UTC)

    def now(self) -> datetime:
        self._now += timedelta(microseconds=1)
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class _Server(uvicorn.Server):
    """uvicorn that leaves the signals of the test process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(kw_only=True)
class House:
    """A running router, and clients with any token."""

    router: Router
    clock: MovableClock
    data: Path
    owner_token: str
    config: Path
    _keys: Iterator[int] = field(default_factory=itertools.count)
    _open: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def url(self) -> str:
        return self.router.url

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def owner(self) -> RouterClient:
        return self.client(self.owner_token)

    def client(self, token: str | None) -> RouterClient:
        client = RouterClient(self.url, token=token)
        client._http.timeout = PATIENCE  # nobody is away here, and a machine may stand still
        self._open.push_async_callback(client.close)
        return client

    @functools.cached_property
    def nobody(self) -> httpx.AsyncClient:
        """One client for many requests, each with what it says of itself."""
        return self.http(None)

    def http(self, token: str | None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False
        )
        self._open.push_async_callback(client.aclose)
        return client

    async def until_watched(self, build_id: str, count: int = 1) -> None:
        """Return when so many wait for what happens to a build."""
        watchers = self.router.bells._watchers
        async with asyncio.timeout(60):
            # The router must not know.
            while len(watchers.get(build_id, ())) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def until_parked(self, count: int = 1) -> None:
        """Return when so many runners wait for work."""
        async with asyncio.timeout(60):
            while len(self.router.bells._parked) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def project_token(self, project: str = "web", **terms: Any) -> str:
        await self.owner.add_project(NewProject(name=project))
        wanted: dict[str, Any] = {"key": f"key-{next(self._keys)}", "name": "of a test", **terms}
        return (await self.owner.add_token(NewToken(project=project, **wanted))).token

    async def upload(self, project: str = "web") -> ContextRef:
        return (await upload(self.owner, project, CONTEXT)).context

    async def submit(self, project: str = "web", **options: Any) -> BuildView:
        plan = options.pop("plan", Plan())
        context = await self.upload(project)
        return await self.owner.submit(
            Submit(project=project, plan=plan, context=context, **options)
        )

    async def credential(self, name: str = "desktop") -> str:
        """Add a runner, and join as it."""
        joined = await self.owner.add_runner(AddRunner(name=name))
        secret = parse_join_code(joined.code).secret
        request = Enroll(secret=secret, nonce=f"{name}-nonce", name=name)
        return (await self.client(None).enroll(request)).credential

    async def runner(self, name: str = "desktop", **able: Any) -> "ScriptedRunner":
        credential = await self.credential(name)
        runner = ScriptedRunner(house=self, name=name, credential=credential)
        await runner.start(f"{name}-life-1", **able)
        return runner

    async def leased(self, runner: "ScriptedRunner", **options: Any) -> tuple[BuildView, Grant]:
        build = await self.submit(**options)
        grants = (await runner.acquire()).grants
        assert [grant.build_id for grant in grants] == [build.id]
        return build, grants[0]


def capabilities(**changed: Any) -> Capabilities:
    usual: dict[str, Any] = {
        "platforms": ("linux/amd64",),
        "backend": "scripted",
        "isolation": "full",
        "networks": ("default", "none"),
        "cpus": 2,
        "memory_bytes": 2**30,
        "slots": 4,
    }
    return Capabilities(**{**usual, **changed})


@dataclass(kw_only=True)
class ScriptedRunner:
    """What a runner says, when the test says so."""

    house: House
    name: str
    credential: str
    session_id: str = ""
    turns: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    key: SessionKey = field(default_factory=SessionKey)

    @property
    def client(self) -> RouterClient:
        return self.house.client(self.credential)

    async def start(self, process: str, boot_id: str = "boot-1", **able: Any) -> None:
        public = able.pop("public_key", self.key.public)
        request = SessionRequest(
            process=process,
            boot_id=boot_id,
            capabilities=capabilities(**able),
            public_key=public,
        )
        self.session_id = (await self.client.open_session(request)).session_id
        self.turns = itertools.count(1)

    def request(self, *, slots: int = 1, held: tuple[Held, ...] = (), hold_ms: int = 0) -> Acquire:
        turn = next(self.turns)
        return Acquire(
            session_id=self.session_id,
            request_id=f"{self.session_id}-request-{turn}",
            turn=turn,
            slots=slots,
            held=held,
            hold_ms=hold_ms,
        )

    async def acquire(
        self, *, slots: int = 1, held: tuple[Held, ...] = (), hold_ms: int = 0
    ) -> Acquired:
        request = self.request(slots=slots, held=held, hold_ms=hold_ms)
        return await self.client.acquire(request)

    async def release(self) -> RunnerView:
        return await self.client.release_session(SessionRelease(session_id=self.session_id))


@dataclass(frozen=True, kw_only=True)
class TinyImage:
    """An image of one layer with one file."""

    config: bytes
    layer: bytes
    manifest: bytes
    platform: str

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    def envelope(self, log: bytes = b"", **changed: Any) -> Envelope:
        """What an honest runner says of it."""
        image = PlatformImage(
            platform=self.platform,
            manifest_digest=self.digest,
            config_digest=digest_of(self.config),
            size_bytes=len(self.layer),
            layers=(digest_of(self.layer),),
        )
        true: dict[str, Any] = {
            "outcome": "succeeded",
            "manifest_digest": self.digest,
            "config_digest": digest_of(self.config),
            "platforms": (image,),
            "log_bytes": len(log),
            "log_digest": digest_of(log),
        }
        return Envelope(**{**true, **changed})


def tiny_image(text: str = "hello", platform: str = "linux/amd64") -> TinyImage:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = len(text.encode())
        tar.addfile(entry, io.BytesIO(text.encode()))
    layer = packed.getvalue()
    system, architecture = platform.split("/")
    config = {
        "architecture": architecture,
        "os": system,
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    config_bytes = json.dumps(config).encode()
    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(f"{kind}.config.v1+json", config_bytes),
        "layers": [descriptor(f"{kind}.layer.v1.tar", layer)],
    }
    body = json.dumps(manifest).encode()
    return TinyImage(config=config_bytes, layer=layer, manifest=body, platform=platform)


def descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


async def push_blob(http: httpx.AsyncClient, repository: str, data: bytes) -> httpx.Response:
    begun = await http.post(f"/v2/{repository}/blobs/uploads/")
    if begun.status_code != 202:
        return begun
    return await http.put(
        begun.headers["location"], params={"digest": digest_of(data)}, content=data
    )


async def push_manifest(
    http: httpx.AsyncClient,
    repository: str,
    body: bytes,
    reference: str | None = None,
    media_type: str = MANIFEST_TYPE,
) -> httpx.Response:
    path = f"/v2/{repository}/manifests/{reference or digest_of(body)}"
    return await http.put(path, content=body, headers={"Content-Type": media_type})


async def push_image(
    http: httpx.AsyncClient, repository: str, image: TinyImage, reference: str | None = None
) -> None:
    for answered in (
        await push_blob(http, repository, image.config),
        await push_blob(http, repository, image.layer),
        await push_manifest(http, repository, image.manifest, reference),
    ):
        assert answered.status_code == 201, answered.text


@contextlib.asynccontextmanager
async def open_house(folder: Path, clock: MovableClock | None = None) -> AsyncIterator[House]:
    """Serve a router from a folder; the same folder again is the same router, restarted."""
    clock = clock or MovableClock()
    listener = listen("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    reached = reach(host="127.0.0.1", port=port, usual_address=None)
    settings = Settings(data=folder / "data", config=folder / "config", here=False)
    settings.data.mkdir(parents=True, exist_ok=True)
    async with open_router(settings, reached, clock=clock) as router:
        await router.sweep.recover()
        server = _Server(
            uvicorn.Config(
                router.app,
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=75,  # as in `pierhead.server.serve`: clients close first
                timeout_graceful_shutdown=5,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        house = House(
            router=router,
            clock=clock,
            data=settings.data,
            config=settings.config,
            owner_token=(settings.config / "token").read_text().strip(),
        )
        try:
            yield house
        finally:
            await house._open.aclose()
            router.bells.drain()
            server.should_exit = True
            await serving
            listener.close()
