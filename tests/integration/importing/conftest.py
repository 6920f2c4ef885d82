"""A real control plane with a real builder, and what an importer builds with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pierhead.router import BuildRequest, DirectoryContext, RouterExecutor
from pierhead.router import builder as builders
from pierhead.router import remote as remotes
from tests.acceptance.stage import BUSYBOX, Stage, stage

DOCKERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "echo", "hello from the build"]
"""
SLEEP = 'RUN ["/bin/busybox", "sleep", "30"]\n'


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a cancelled task and a cancel wait at most is a matter of time, and asked elsewhere.

    Here the control plane may have to wait for the machine.
    """
    monkeypatch.setattr(builders, "CANCEL_SECONDS", 20.0)
    monkeypatch.setattr(remotes, "CANCELLED_SUBMIT_SECONDS", 20.0)
    monkeypatch.setattr(remotes, "STOP_SECONDS", 60.0)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Stage]:
    folder = tmp_path / "stage"
    folder.mkdir()
    async with stage(folder) as opened:
        yield opened


def executor(plane: Stage) -> RouterExecutor:
    return RouterExecutor(plane.url, token=plane.token)


def request(folder: Path, dockerfile: str = DOCKERFILE, **options: object) -> BuildRequest:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    (folder / "busybox").write_bytes(BUSYBOX.read_bytes())
    (folder / "busybox").chmod(0o755)
    usual = {"context": DirectoryContext(path=folder), "project": "acme/web", **options}
    return BuildRequest(**usual)  # type: ignore[arg-type]
