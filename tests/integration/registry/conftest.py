"""The registry alone on a real socket: real database, real blobs, and a table of who is who."""

import asyncio
import base64
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

from pierhead.router.adapters.clock import SystemClock
from pierhead.router.adapters.entropy import SystemEntropy
from pierhead.router.adapters.sql.ledger import SqlStore
from pierhead.router.adapters.vault import KeyVault
from pierhead.router.compose import mirror_of
from pierhead.router.domain.errors import Unauthenticated
from pierhead.router.domain.token import Attempt, Owner, Principal, ProjectHolder, Runner
from pierhead.router.http.mirror import MirrorHandlers
from pierhead.router.http.registry import RegistryHandlers
from pierhead.router.http.requests import token_of
from pierhead.router.http.routes import registry_routes
from pierhead.router.services.passes import Passes
from pierhead.router.services.registry import Registry
from pierhead.server.blobs import BlobStore
from pierhead.server.connection import Connection
from pierhead.server.serve import listen
from pierhead.server.share import Share
from tests.integration.registry.image import BLOB, MANIFEST, Image, digest_of

WHO: dict[str, Principal] = {
    "owner": Owner(),
    "shop": ProjectHolder("acme/shop"),
    "blog": ProjectHolder("acme/blog"),
    "attempt": Attempt("b_one", 1, "acme/shop"),
    "rival": Attempt("b_two", 1, "acme/shop"),
    "ended": Attempt("b_one", 1, "acme/shop", live=False),
    "runner": Runner("mine"),
}


async def authenticate(request: Request) -> Principal:
    try:
        return WHO[token_of(request)]
    except KeyError:
        raise Unauthenticated("this token is not known here") from None


@dataclass(frozen=True, slots=True)
class Served:
    """A registry that listens."""

    folder: Path
    data: Path
    port: int
    store: SqlStore

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, who: str) -> httpx.AsyncClient:
        """Return a client with a token of the table."""
        headers = {"Authorization": f"Bearer {who}"}
        return httpx.AsyncClient(base_url=f"http://{self.host}", headers=headers, timeout=60)

    def login(self, who: str) -> Path:
        """Return a folder with a login file of docker's form."""
        folder = self.folder / f"login-{who}"
        folder.mkdir(exist_ok=True)
        auth = base64.b64encode(f"me:{who}".encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {self.host: {"auth": auth}}}))
        return folder

    async def run(self, *command: str | Path, fails: bool = False) -> str:
        """Run a real client, and return all that it said."""
        done = await asyncio.to_thread(
            subprocess.run, list(map(str, command)), capture_output=True, check=False, timeout=120
        )
        said = (done.stdout + done.stderr).decode()
        assert (done.returncode != 0) == fails, said
        return said

    async def skopeo(self, who: str, source: str, target: str, *, fails: bool = False) -> str:
        plain = ["--src-tls-verify=false", "--dest-tls-verify=false"]
        authfile = self.login(who) / "config.json"
        return await self.run(
            "skopeo", "copy", *plain, "--authfile", authfile, source, target, fails=fails
        )


@contextlib.asynccontextmanager
async def serving(folder: Path, data: Path, share: Share | None = None) -> AsyncIterator[Served]:
    store = await SqlStore.open(folder / "router.db")
    listener = listen("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    entropy, clock = SystemEntropy(), SystemClock()
    blobs = BlobStore(data, new_id=lambda: entropy.id("u_"), share=share)
    own = frozenset({f"127.0.0.1:{port}"})
    mirror = mirror_of(store, blobs, b"key", own, clock=clock, entropy=entropy)
    handlers = RegistryHandlers(
        authenticate=authenticate,
        registry=Registry(store=store, blobs=blobs, clock=clock),
        passes=Passes(vault=KeyVault(b"key"), clock=clock),
        mirror=MirrorHandlers(mirror=mirror, own=own),
        realm=f"http://127.0.0.1:{port}/v2/token",
    )
    app = Starlette(routes=registry_routes(handlers))
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        ws="none",
        loop="none",
        http=Connection,
        timeout_keep_alive=75,  # as in `pierhead.server.serve`: clients close first
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield Served(folder, data, port, store)
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()
        await store.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, tmp_path / "data") as opened:
        yield opened


async def push_blob(client: httpx.AsyncClient, repository: str, data: bytes) -> httpx.Response:
    """Push a blob with one request."""
    headers = {"Content-Type": BLOB}
    target = f"/v2/{repository}/blobs/uploads/?digest={digest_of(data)}"
    return await client.post(target, content=data, headers=headers)


async def push_manifest(
    client: httpx.AsyncClient, repository: str, data: bytes, *, to: str, kind: str = MANIFEST
) -> httpx.Response:
    return await client.put(
        f"/v2/{repository}/manifests/{to}", content=data, headers={"Content-Type": kind}
    )


async def push_image(
    client: httpx.AsyncClient, repository: str, image: Image, *, to: str | None = None
) -> None:
    """Push a whole image, by digest or to a tag."""
    for data in (image.layer, image.config):
        assert (await push_blob(client, repository, data)).status_code == 201
    answer = await push_manifest(client, repository, image.manifest, to=to or image.digest)
    assert answer.status_code == 201, answer.text
    assert answer.headers["docker-content-digest"] == image.digest
