"""What was built, as engines see it: `docker inspect` of what was pulled, and pull passwords."""

import asyncio
import json
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pierhead.router import ImageInfo, PullCredentials, RoutedImageBuilder
from tests.acceptance.stage import Stage, eventually
from tests.integration.importing.conftest import executor, request
from tools.engine import engine

RICH = """\
FROM scratch
COPY busybox /bin/busybox
ENV GREETING=hello WITH_EQUALS=a=b EMPTY=
WORKDIR /srv/app
USER 1000:1000
EXPOSE 8080 53/udp
VOLUME /data
LABEL one=1
STOPSIGNAL SIGINT
ENTRYPOINT ["/bin/busybox"]
CMD ["echo", "hi"]
"""
BARE = "FROM scratch\nCOPY busybox /\n"
# What only the engine knows: where it keeps the layers, and how large they are unpacked.
ENGINES_OWN = {"GraphDriver", "Metadata", "Size", "VirtualSize", "Comment", "Container"}
ENGINES_OWN |= {"ContainerConfig"}


def inspected(plane: Stage, image: ImageInfo, login: Path) -> dict[str, Any]:
    # A socket's path is at most 107 bytes long, so the daemon gets a short folder.
    with (
        tempfile.TemporaryDirectory(prefix="ph-", ignore_cleanup_errors=True) as work,
        engine(Path(work), plane.port, login) as docker,
    ):
        docker.run("pull", "--quiet", image.reference)
        try:
            found: dict[str, Any] = json.loads(docker.run("image", "inspect", image.reference))[0]
        finally:
            docker.run("image", "rm", image.reference)
    return found


def written(folder: Path, credentials: PullCredentials) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(credentials.docker_config_json())
    return folder


@pytest.mark.parametrize("dockerfile", [RICH, BARE], ids=["rich", "bare"])
async def test_docker_inspect_of_the_pulled_image_says_the_same_field_by_field(
    plane: Stage, tmp_path: Path, dockerfile: str
) -> None:
    builder = RoutedImageBuilder(executor(plane))
    image = await builder.build(request(tmp_path / "src", dockerfile))
    credentials = await builder.pull_credentials(image, ttl=timedelta(minutes=5))
    login = written(tmp_path / "login", credentials)

    docker = await asyncio.to_thread(inspected, plane, image, login)

    ours = image.to_docker_inspect()
    assert docker.keys() - ENGINES_OWN == ours.keys() - ENGINES_OWN
    for field in sorted(ours.keys() - ENGINES_OWN):
        assert ours[field] == docker[field], field


def skopeo(login: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["skopeo", *arguments, "--authfile", str(login / "config.json")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


async def test_a_pull_password_pulls_does_nothing_else_and_ends(
    plane: Stage, tmp_path: Path
) -> None:
    builder = RoutedImageBuilder(executor(plane))
    image = await builder.build(request(tmp_path / "src", BARE))
    given = await builder.pull_credentials(image, ttl=timedelta(minutes=5))
    login, source = written(tmp_path / "login", given), f"docker://{image.reference}"
    plain = ("--src-tls-verify=false", f"oci:{tmp_path}/pulled")

    pulled = await asyncio.to_thread(skopeo, login, "copy", source, *plain)
    pushed = await asyncio.to_thread(
        skopeo,
        login,
        "copy",
        f"oci:{tmp_path}/pulled",
        f"docker://{given.registry}/acme/web:mine",
        "--dest-tls-verify=false",
    )
    elsewhere = await asyncio.to_thread(
        skopeo,
        login,
        "inspect",
        f"docker://{given.registry}/acme/shop:latest",
        "--tls-verify=false",
    )

    assert pulled.returncode == 0, pulled.stderr
    assert pushed.returncode != 0
    assert "denied" in pushed.stderr.lower()
    assert elsewhere.returncode != 0
    assert given.password not in repr(given)

    brief = await builder.pull_credentials(image, ttl=timedelta(seconds=1))
    login = written(tmp_path / "brief", brief)

    async def refused() -> bool:
        again = await asyncio.to_thread(skopeo, login, "inspect", source, "--tls-verify=false")
        return again.returncode != 0 and "time of this token is over" in again.stderr

    await eventually(refused, within=120, what="the password's time is over")
