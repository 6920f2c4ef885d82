"""Real clients on a real socket: skopeo, buildah and a Docker engine of our own."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.registry.conftest import Served, push_image
from tests.integration.registry.image import digest_of, image
from tools.engine import own_engine

SHOP = "acme/shop"


def digest_in(layout: Path) -> str:
    """Return the digest of the only manifest of an OCI layout."""
    [manifest] = json.loads((layout / "index.json").read_text())["manifests"]
    return str(manifest["digest"])


async def test_skopeo_pushes_to_a_tag_and_gets_the_same_bytes_back(
    served: Served, tmp_path: Path
) -> None:
    layout, back = image().write(tmp_path / "image"), tmp_path / "back"
    remote = f"docker://{served.host}/{SHOP}"
    await served.skopeo("shop", f"oci:{layout}", f"{remote}:v1")
    await served.skopeo("shop", f"{remote}:v1", f"oci:{back}")
    assert digest_in(back) == image().digest
    assert digest_of((back / "blobs/sha256" / image().digest[7:]).read_bytes()) == image().digest


async def test_skopeo_pushes_for_an_attempt_by_digest_only(served: Served, tmp_path: Path) -> None:
    layout, back = image().write(tmp_path / "image"), tmp_path / "back"
    remote = f"docker://{served.host}/{SHOP}"
    said = await served.skopeo("attempt", f"oci:{layout}", f"{remote}:v1", fails=True)
    assert "its tags move when its result is accepted" in said
    await served.skopeo("attempt", f"oci:{layout}", f"{remote}@{image().digest}")
    await served.skopeo("rival", f"{remote}@{image().digest}", f"oci:{back}", fails=True)
    await served.skopeo("attempt", f"{remote}@{image().digest}", f"oci:{back}")
    assert digest_in(back) == image().digest


@pytest.mark.parametrize(("who", "says"), [("wrong", "unauthorized"), ("runner", "forbidden")])
async def test_skopeo_is_told_why_it_may_not(
    served: Served, tmp_path: Path, who: str, says: str
) -> None:
    layout = image().write(tmp_path / "image")
    target = f"docker://{served.host}/{SHOP}:v1"
    said = await served.skopeo(who, f"oci:{layout}", target, fails=True)
    assert says in said.lower(), said


async def test_buildah_pulls_a_base_builds_on_it_and_pushes(served: Served, tmp_path: Path) -> None:
    async with served.client("shop") as shop:
        await push_image(shop, SHOP, image("a base"), to="base")
    (tmp_path / "new").write_text("added")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(f"FROM {served.host}/{SHOP}:base\nCOPY new /new\n")
    roots: list[str | Path] = [
        "--root",
        tmp_path / "root",
        "--runroot",
        tmp_path / "run",
        "--storage-driver",
        "vfs",
    ]
    remote: list[str | Path] = [
        "--tls-verify=false",
        "--authfile",
        served.login("shop") / "config.json",
    ]
    reference = f"{served.host}/{SHOP}:built"
    build: list[str | Path] = [
        "bud",
        *remote,
        "--isolation",
        "chroot",
        "-t",
        reference,
        "-f",
        dockerfile,
        tmp_path,
    ]
    await served.run("buildah", *roots, *build)
    await served.run("buildah", *roots, "push", *remote, reference)
    async with served.client("shop") as shop:
        found = (await shop.get(f"/v2/{SHOP}/manifests/built")).json()
    base = digest_of(image("a base").layer)
    assert len(found["layers"]) == 2, (found, base)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder in which the path of a socket is under the kernel's 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ph-") as folder:
        yield Path(folder)


async def test_docker_logs_in_pulls_by_digest_and_pushes_and_pulls_a_tag(
    served: Served, tmp_path: Path, short_folder: Path
) -> None:
    async with served.client("shop") as shop:
        await push_image(shop, SHOP, image())
    by_digest, by_tag = (f"{served.host}/{SHOP}{end}" for end in (f"@{image().digest}", ":v2"))
    with own_engine(short_folder, served.port, tmp_path / "fresh") as engine:
        docker = engine.command
        refused = await served.run(*docker, "pull", by_digest, fails=True)
        assert "no token was sent" in refused or "no basic auth" in refused, refused
        secret = tmp_path / "password"
        secret.write_text("shop")
        shell = 'secret=$1; shift; exec "$@" < "$secret"'
        login = [*docker, "login", "--username", "me", "--password-stdin", served.host]
        await served.run("sh", "-c", shell, "login", secret, *login)
        await served.run(*docker, "pull", by_digest)
        await served.run(*docker, "tag", by_digest, by_tag)
        await served.run(*docker, "push", by_tag)
        await served.run(*docker, "rmi", by_tag)  # takes the digest along
        assert "Downloaded newer image" in await served.run(*docker, "pull", by_tag)
        missing = await served.run(*docker, "pull", f"{served.host}/{SHOP}:none", fails=True)
        assert "not found" in missing or "manifest unknown" in missing, missing
