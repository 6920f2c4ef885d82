"""Real clients on a real socket: skopeo, buildah and a Docker engine of our own."""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from oras.client import OrasClient  # type: ignore[import-untyped]
from oras.oci import Subject  # type: ignore[import-untyped]

from tests.integration.registry.conftest import Served, push_image
from tests.integration.registry.image import MANIFEST, digest_of, image
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
    with tempfile.TemporaryDirectory(prefix="ph-", ignore_cleanup_errors=True) as folder:
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


async def logged_in(
    served: Served, command: Sequence[str | Path], who: str, *, fails: bool = False
) -> str:
    """Log in as a person would, with the password on standard input."""
    secret = served.folder / f"password-{who}"
    secret.write_text(who)
    shell = 'secret=$1; shift; exec "$@" < "$secret"'
    said = [*command, "--username", "me", "--password-stdin", served.host]
    return await served.run("sh", "-c", shell, "login", secret, *said, fails=fails)


async def test_one_image_goes_round_through_every_client(
    served: Served, tmp_path: Path, short_folder: Path
) -> None:
    """skopeo pushes; podman, buildah and docker each pull, tag and push on; skopeo compares."""
    host, plain = f"{served.host}/{SHOP}", "--tls-verify=false"
    authfile: list[str | Path] = ["--authfile", tmp_path / "auth.json"]
    layout, back = image("goes round").write(tmp_path / "image"), tmp_path / "back"
    said = await logged_in(served, ["skopeo", "login", plain, *authfile], "shop")
    assert "Login Succeeded" in said
    remote = [plain, *authfile]
    await served.run(
        "skopeo",
        "copy",
        "--dest-tls-verify=false",
        *authfile,
        f"oci:{layout}",
        f"docker://{host}:1",
    )
    # podman takes at most 50 characters here.
    folders: list[str | Path] = ["--root", tmp_path / "root", "--runroot", short_folder / "run"]
    for number, client in enumerate(("podman", "buildah"), 1):
        tool: list[str | Path] = [client, *folders, "--storage-driver", "vfs"]
        login = [*tool, "login", plain, *authfile]
        assert "Login Succeeded" in await logged_in(served, login, "shop")
        await served.run(*tool, "pull", *remote, f"{host}:{number}")
        await served.run(*tool, "tag", f"{host}:{number}", f"{host}:{number + 1}")
        await served.run(*tool, "push", *remote, f"{host}:{number + 1}")
    with own_engine(short_folder, served.port, tmp_path / "fresh") as engine:
        login = [*engine.command, "login"]
        assert "Login Succeeded" in await logged_in(served, login, "shop")
        await served.run(*engine.command, "pull", f"{host}:3")
        await served.run(*engine.command, "tag", f"{host}:3", f"{host}:4")
        await served.run(*engine.command, "push", f"{host}:4")
    await served.skopeo("shop", f"docker://{host}:4", f"oci:{back}")
    async with served.client("shop") as shop:
        assert (await shop.get(f"/v2/{SHOP}/tags/list")).json()["tags"] == ["1", "2", "3", "4"]
    blobs = back / "blobs" / "sha256"
    digest = json.loads((blobs / digest_in(back)[7:]).read_text())["config"]["digest"]
    config = json.loads((blobs / digest[7:]).read_text())
    # docker writes the configuration its own way; what is in the image stays what it was.
    first = json.loads(image("goes round").config)
    assert config["rootfs"] == first["rootfs"]
    assert config["config"]["Cmd"] == first["config"]["Cmd"]


@pytest.mark.parametrize("client", ["skopeo", "podman", "buildah"])
async def test_a_login_with_a_wrong_password_is_refused(
    served: Served, tmp_path: Path, client: str
) -> None:
    login: list[str | Path] = [client, "login", "--tls-verify=false"]
    login += ["--authfile", tmp_path / "auth.json"]
    said = await logged_in(served, login, "nobody", fails=True)
    assert "unauthorized" in said or "invalid username/password" in said, said


async def test_skopeo_copies_between_two_projects_by_mounts(served: Served) -> None:
    async with served.client("shop") as shop:
        await push_image(shop, SHOP, image(), to="v1")
    before = sorted((served.data / "blobs").glob("sha256/*/*"))
    source, target = (f"docker://{served.host}/{name}:v1" for name in (SHOP, "acme/blog"))
    await served.skopeo("owner", source, target)
    async with served.client("blog") as blog:
        found = await blog.get("/v2/acme/blog/manifests/v1")
        assert found.content == image().manifest
        assert (await blog.head(f"/v2/acme/blog/blobs/{digest_of(image().layer)}")).is_success
    assert sorted((served.data / "blobs").glob("sha256/*/*")) == before
    await served.skopeo("shop", source, target, fails=True)


async def test_skopeo_lists_and_deletes(served: Served, tmp_path: Path) -> None:
    async with served.client("shop") as shop:
        for tag in ("a", "b"):
            await push_image(shop, SHOP, image(), to=tag)
    authfile = served.login("shop") / "config.json"
    remote: list[str | Path] = ["--tls-verify=false", "--authfile", authfile]
    listed = await served.run("skopeo", "list-tags", *remote, f"docker://{served.host}/{SHOP}")
    assert json.loads(listed)["Tags"] == ["a", "b"]
    await served.run("skopeo", "delete", *remote, f"docker://{served.host}/{SHOP}:a")
    gone = await served.run(
        "skopeo", "inspect", *remote, f"docker://{served.host}/{SHOP}:a", fails=True
    )
    assert "manifest unknown" in gone, gone
    async with served.client("shop") as shop:
        # It asks for the digest and deletes that: the image, with every tag on it.
        assert (await shop.get(f"/v2/{SHOP}/manifests/b")).status_code == 404


async def test_a_tag_that_is_deleted_by_its_name_leaves_the_others(served: Served) -> None:
    async with served.client("shop") as shop:
        for tag in ("a", "b"):
            await push_image(shop, SHOP, image(), to=tag)
    url = f"http://{served.host}/v2/{SHOP}/manifests/a"
    await served.run("curl", "-fsS", "-X", "DELETE", "-u", "me:shop", url)
    async with served.client("shop") as shop:
        assert (await shop.get(f"/v2/{SHOP}/manifests/a")).status_code == 404
        assert (await shop.get(f"/v2/{SHOP}/manifests/b")).content == image().manifest


async def test_oras_attaches_a_document_to_an_image_and_gets_it_back(
    served: Served, tmp_path: Path
) -> None:
    async with served.client("shop") as shop:
        await push_image(shop, SHOP, image(), to="v1")
    (tmp_path / "sbom.json").write_text('{"spdxVersion": "SPDX-2.3"}')
    target = f"{served.host}/{SHOP}"

    def attach() -> list[str]:
        client = OrasClient(hostname=served.host, insecure=True)
        client.login(
            username="me",
            password="shop",
            config_path=str(tmp_path / "oras.json"),
        )
        subject = Subject(MANIFEST, image().digest, len(image().manifest))
        client.push(
            target=f"{target}:sbom",
            files=[f"{tmp_path / 'sbom.json'}:application/spdx+json"],
            disable_path_validation=True,
            subject=subject,
            config_path=str(tmp_path / "oras.json"),
        )
        found: list[str] = client.pull(
            target=f"{target}:sbom",
            outdir=str(tmp_path / "out"),
            config_path=str(tmp_path / "oras.json"),
        )
        return found

    [pulled] = await asyncio.to_thread(attach)
    assert Path(pulled).read_text() == '{"spdxVersion": "SPDX-2.3"}'
    async with served.client("shop") as shop:
        listed = (await shop.get(f"/v2/{SHOP}/referrers/{image().digest}")).json()["manifests"]
        tagged = await shop.head(f"/v2/{SHOP}/manifests/sbom")
    assert [one["digest"] for one in listed] == [tagged.headers["docker-content-digest"]]
