"""A real service in three stages: what its envelope says is what Docker says of the same image."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pierhead.protocol.build import BuildView
from pierhead.protocol.result import Envelope
from tests.acceptance.stage import PATIENCE_SECONDS, ROOT, Stage, stage
from tools.base_image import base_image
from tools.engine import Engine, own_engine

ASK = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000').read().decode())"
EXAMPLE = ROOT / "examples" / "python-web"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = tmp_path / "python-web"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("base.tar"))
    base_image(folder / "base.tar")
    return folder


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ph-") as folder:  # a socket's path has 108 bytes
        yield Path(folder)


async def built(on: Stage, folder: Path, *options: str) -> BuildView:
    done = on.run("build", "-q", *options, str(folder))
    assert done.returncode == 0, done.stderr
    async with on.client() as owner:
        view = await owner.build("@")
    assert view.reference == done.stdout.strip()
    return view


def envelope_of(view: BuildView) -> Envelope:
    assert view.result is not None
    return view.result


def said_of(envelope: Envelope) -> dict[str, Any]:
    """Return the envelope in the words of `docker inspect`."""
    config = envelope.config
    assert config is not None
    assert config.healthcheck is not None
    health = config.healthcheck
    return {
        "User": config.user,
        "Env": list(config.env),
        "Entrypoint": list(config.entrypoint or ()),
        "Cmd": list(config.cmd or ()),
        "WorkingDir": config.working_dir,
        "ExposedPorts": {port: {} for port in config.exposed_ports},
        "Volumes": {volume: {} for volume in config.volumes},
        "Labels": config.labels,
        "StopSignal": config.stop_signal,
        "Healthcheck": {
            "Test": list(health.test),
            "Interval": health.interval_ns,
            "Timeout": health.timeout_ns,
            "Retries": health.retries,
        },
    }


def until_healthy(engine: Engine, container: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        state = json.loads(engine.run("inspect", "--format", "{{json .State}}", container))
        assert state["Running"], engine.run("logs", container)
        if state["Health"]["Status"] == "healthy":
            return
        assert time.monotonic() < deadline, state
        time.sleep(0.2)


@pytest.mark.timeout(600)
async def test_the_envelope_says_what_docker_says_and_the_service_is_well(
    example: Path, tmp_path: Path, short_folder: Path
) -> None:
    async with stage(tmp_path) as on:
        await on.join("desktop")
        first = await built(on, example, "--build-arg", "VERSION=1.2")
        (example / "app" / "service.py").write_text(
            (example / "app" / "service.py").read_text().replace('"hello"', '"hello again"')
        )
        second = await built(on, example, "--build-arg", "VERSION=1.2")
        with own_engine(short_folder, on.port, on.login) as engine:
            reference = str(second.reference)
            engine.run("pull", reference)
            [image] = json.loads(engine.run("image", "inspect", reference))
            place = ("run", "--detach", "--network", "none")
            container = engine.run(*place, reference).strip()
            until_healthy(engine, container)
            answered = json.loads(engine.run("exec", container, "python3", "-c", ASK))
            engine.run("rm", "--force", container)

    envelope = envelope_of(second)
    inspected = {key: image["Config"].get(key) for key in said_of(envelope)}
    assert said_of(envelope) == inspected
    [platform] = envelope.platforms
    assert image["Id"] == envelope.config_digest == platform.config_digest
    assert f"{image['Os']}/{image['Architecture']}" == platform.platform
    assert image["RepoDigests"] == [reference]
    assert len(image["RootFS"]["Layers"]) == len(platform.layers)
    assert answered == {"greeting": "hello again", "version": "1.2", "user": "10001"}

    # The base is neither built nor sent again.
    before = envelope_of(first)
    assert envelope.cache.cached >= 8
    assert envelope.platforms[0].layers[0] == before.platforms[0].layers[0]
    assert envelope.bytes_moved.pushed_bytes < before.bytes_moved.pushed_bytes / 20
