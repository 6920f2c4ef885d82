"""Registries of others: Debian's docker-registry behind a password, and one that can misbehave."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pierhead.protocol.digest import digest_of
from pierhead.server.serve import listen
from tests.integration.router.stage import MANIFEST_TYPE, TinyImage
from tests.ports import free_port

USER, PASSWORD = "me", "correct horse"
# Of somebody else, for whoever looks for it in all processes: no other test may know it.
SOUGHT_USER, SOUGHT_PASSWORD = "you", "staple of nobody else"
# bcrypt of the passwords: docker-registry knows nothing else.
HTPASSWD = f"""\
{USER}:$2y$05$abcdefghijklmnopqrstuuHNbAKRhpaujgo33bRWs.NLUTJO3lOy2
{SOUGHT_USER}:$2y$05$abcdefghijklmnopqrstuuM2Q9gEfO8tas01FGZgFBClyfPdyr03.
"""
CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: others, path: {folder}/htpasswd}}}}
"""


@contextlib.asynccontextmanager
async def docker_registry(folder: Path) -> AsyncIterator[str]:
    """Run docker-registry on a port of its own, and give its host."""
    folder.mkdir()
    port = free_port()
    (folder / "htpasswd").write_text(HTPASSWD)
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, port=port))
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "docker-registry", "serve", folder / "config.yml", stdout=log, stderr=log
        )
    try:
        async with asyncio.timeout(60):
            while not await _answers(port):
                assert process.returncode is None, (folder / "log").read_text()
                await asyncio.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def push(host: str, name: str, image: TinyImage, tag: str) -> None:
    """Push an image to docker-registry, which keeps the state of uploads in their address."""
    auth = (USER, PASSWORD)
    async with httpx.AsyncClient(
        base_url=f"http://{host}", auth=auth, trust_env=False, timeout=60
    ) as http:
        for part in (image.config, image.layer):
            begun = await http.post(f"/v2/{name}/blobs/uploads/")
            url = httpx.URL(begun.headers["location"])
            url = url.copy_merge_params({"digest": digest_of(part)})
            assert (await http.put(url, content=part)).status_code == 201
        headers = {"Content-Type": MANIFEST_TYPE}
        path = f"/v2/{name}/manifests/{tag}"
        put = await http.put(path, content=image.manifest, headers=headers)
        assert put.status_code == 201, put.text


async def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@dataclass
class Strange:
    """A registry with a token service, whose every answer a test can change."""

    host: str = ""
    images: dict[str, TinyImage] = field(default_factory=dict)  # by name
    tags: dict[str, str] = field(default_factory=dict)  # what TAG is called by for each name
    needs_login: bool = False
    silent: bool = False  # it answers 503
    said_digest: str | None = None  # for every manifest, in the place of the true one
    spoilt: dict[str, bytes] = field(default_factory=dict)  # blobs that are others
    cut_after: int | None = None  # bytes of a blob
    endless: bool = False  # blobs go on and on, and nobody says how long they are
    every: float = 0.0  # seconds between the pieces of an endless one
    packed: bool = False  # blobs are said to be compressed
    elsewhere: str | None = None  # where blobs are sent on to
    slow: asyncio.Event | None = None  # no blob before it is set
    waited: asyncio.Event = field(default_factory=asyncio.Event)  # somebody waits for a blob
    realm: str | None = None  # where tokens are, if not here
    token_status: int = 200
    no_registry: bool = False  # it gives out tokens alone
    scheme: str = "http"
    seen: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, login

    def asked(self, method: str, part: str) -> list[str]:
        """Return the logins of the requests of this method to a path with this in it."""
        return [login for verb, path, login in self.seen if verb == method and part in path]

    async def answer(self, request: Request) -> Response:
        login = request.headers.get("authorization", "")
        self.seen.append((request.method, request.url.path, login))
        if self.silent:
            return Response(status_code=503)
        path = request.url.path
        if path == "/token":
            return self._token(login)
        if self.no_registry:
            return Response(status_code=404)
        if path.startswith("/stored/"):
            return self._blob(path.removeprefix("/stored/"))
        if not login.startswith("Bearer good"):
            realm = self.realm or f"{self.scheme}://{self.host}/token"
            said = f'Bearer realm="{realm}",service="strange"'
            return Response(status_code=401, headers={"WWW-Authenticate": said})
        return await self._content(path, request.method)

    def _token(self, login: str) -> Response:
        if self.token_status != 200:
            return Response(status_code=self.token_status)
        right = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if login and login != right:
            return Response(status_code=401)
        if self.needs_login and not login:
            return Response(status_code=401)
        return JSONResponse({"access_token": "good-token", "expires_in": 300})

    async def _content(self, path: str, method: str) -> Response:
        if path == "/v2/":
            return JSONResponse({})
        name, kind, reference = path.removeprefix("/v2/").rsplit("/", 2)
        image = self.images.get(name)
        if image is None:
            return Response(status_code=404)
        if kind == "manifests":
            if reference not in {"latest", image.digest}:
                return Response(status_code=404)
            said = self.said_digest or image.digest
            headers = {"Docker-Content-Digest": said, "Content-Length": str(len(image.manifest))}
            body = b"" if method == "HEAD" else image.manifest
            return Response(body, media_type=MANIFEST_TYPE, headers=headers)
        if self.slow is not None:
            self.waited.set()
            await self.slow.wait()
        if self.elsewhere is not None:
            return Response(status_code=307, headers={"Location": self.elsewhere + reference})
        return self._blob(reference)

    def _blob(self, digest: str) -> Response:
        parts = [part for image in self.images.values() for part in (image.config, image.layer)]
        found: dict[str, bytes] = {digest_of(part): part for part in parts}
        if digest not in found:
            return Response(status_code=404)
        data = self.spoilt.get(digest, found[digest])
        if self.endless:
            return StreamingResponse(self._without_end(data))
        headers = {"Content-Length": str(len(data))}
        if self.packed:
            headers["Content-Encoding"] = "gzip"
        if self.cut_after is not None:
            return StreamingResponse(self._cut(data), headers=headers)
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def _without_end(self, data: bytes) -> AsyncIterator[bytes]:
        piece = data if not self.every else b"x"
        while True:
            yield piece
            await asyncio.sleep(self.every)

    async def _cut(self, data: bytes) -> AsyncIterator[bytes]:
        assert self.cut_after is not None
        yield data[: self.cut_after]


@contextlib.asynccontextmanager
async def strange_registry(certificate: Path | None = None) -> AsyncIterator[Strange]:
    """Run a registry that a test can change; with a certificate and its key it speaks TLS."""
    strange = Strange(scheme="https" if certificate else "http")
    listener = listen("127.0.0.1", 0)
    strange.host = f"127.0.0.1:{listener.getsockname()[1]}"
    methods = ["GET", "HEAD", "POST"]
    app = Starlette(routes=[Route("/{path:path}", strange.answer, methods=methods)])
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            loop="none",
            ssl_certfile=certificate,
        )
    )
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield strange
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()
