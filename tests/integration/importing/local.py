"""A platform's own builder, as it may look today: buildah on this machine, and no control plane."""

import asyncio
import json
import os
from pathlib import Path

from pierhead.router import (
    BuildFailedError,
    BuildId,
    BuildRequest,
    Digest,
    DirectoryContext,
    Failed,
    ImageConfig,
    ImageInfo,
    Log,
    OnEvent,
)
from pierhead.router.builder import tell

ID = BuildId("local")


class BuildahBuilder:
    """Builds into a store of its own."""

    def __init__(self, store: Path) -> None:
        self._store = ["--root", str(store / "root"), "--runroot", str(store / "run")]

    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        assert isinstance(request.context, DirectoryContext)
        folder = request.context.path
        labels = [f"--label={name}={value}" for name, value in request.labels.items()]
        command = ["bud", "--isolation", "chroot", "--tag", "local/built", *labels]
        file = str(folder / request.dockerfile)
        code, log = await self._run(on_event, *command, "-f", file, str(folder))
        if code != 0:
            lines = tuple(log.decode().splitlines()[-5:])
            failed = Failed(cause="command", step=None, exit_code=code, extract=lines)
            raise BuildFailedError(failed, build_id=ID)
        _, said = await self._run(None, "inspect", "--type", "image", "local/built")
        return _image(json.loads(said), request)

    async def _run(self, on_event: OnEvent | None, *arguments: str) -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            "buildah",
            "--storage-driver",
            "vfs",
            *self._store,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "BUILDAH_FORMAT": "oci"},
        )
        assert process.stdout is not None
        log = b""
        try:
            while data := await process.stdout.read(4096):
                await tell(on_event, Log(data=data, offset=len(log)))
                log += data
            return await process.wait(), log
        except BaseException:
            process.kill()
            await process.wait()
            raise


def _image(said: dict[str, object], request: BuildRequest) -> ImageInfo:
    digest = Digest(str(said["FromImageDigest"]))
    found = said["OCIv1"]
    assert isinstance(found, dict)
    config = found["config"]
    return ImageInfo(
        build_id=ID,
        reference=f"localhost/{request.project}@{digest}",
        digest=digest,
        config_digest=Digest(f"sha256:{said['FromImageID']}"),
        config=ImageConfig(
            exposed_ports=tuple(_port(port) for port in config.get("ExposedPorts") or ()),
            working_dir=config.get("WorkingDir") or "",
            env=dict(entry.partition("=")[::2] for entry in config.get("Env") or ()),
            cmd=tuple(config.get("Cmd") or ()),
            labels=config.get("Labels") or {},
        ),
        platforms=("linux/amd64",),
        size_bytes=0,
    )


def _port(port: str) -> str:
    """Return a port as docker writes it: buildah leaves out what is usual."""
    return port if "/" in port else f"{port}/tcp"
