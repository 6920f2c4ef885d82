"""The image where the command line wants it: files, a Docker engine, what scripts read."""

import json
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tools.engine import own_engine

from .stage import BIN, BUSYBOX, HELLO, Stage, stage


def _context(folder: Path) -> str:
    folder.mkdir()
    (folder / "busybox").write_bytes(BUSYBOX.read_bytes())
    (folder / "busybox").chmod(0o755)
    (folder / "Dockerfile").write_text(HELLO + "RUN rm /bin/ed && echo told > /told\n")
    return str(folder)


def _raw(on: Stage, *words: str) -> "subprocess.CompletedProcess[bytes]":
    environment = {**os.environ, **on.environment}
    return subprocess.run(
        [BIN / "pierhead", *words], env=environment, capture_output=True, check=True
    )


def _digest(image: str) -> str:
    command = ["skopeo", "inspect", "--format", "{{.Digest}}", image]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


async def test_one_build_gives_a_layout_an_archive_its_files_and_what_scripts_read(
    tmp_path: Path,
) -> None:
    context = _context(tmp_path / "hello")
    made = tmp_path / "made"
    made.mkdir()
    files = ["-o", f"type=oci,dest={made}/oci.tar", "-o", f"{made}/docker.tar"]
    files += ["-o", f"type=tar,dest={made}/files.tar"]
    told = ["--iidfile", f"{made}/id", "--metadata-file", f"{made}/meta.json"]
    async with stage(tmp_path) as on:
        done = on.run("build", "-t", "web:1", *files, *told, context)
        digest = done.stdout.strip().partition("@")[2]

    assert done.returncode == 0, done.stderr
    assert f"written   {made}/oci.tar" in done.stderr
    assert _digest(f"oci-archive:{made}/oci.tar") == digest
    meta = json.loads((made / "meta.json").read_text())
    assert meta["containerimage.digest"] == digest
    assert meta["containerimage.config.digest"] == (made / "id").read_text()
    with tarfile.open(made / "docker.tar") as archive:
        listed = archive.extractfile("manifest.json")
        assert listed is not None
        assert json.load(listed)[0]["RepoTags"] == ["web:1"]
    with tarfile.open(made / "files.tar") as files_seen:
        names = files_seen.getnames()
    assert "told" in names
    assert "bin/cat" in names
    assert "bin/ed" not in names
    assert sorted(path.name for path in made.iterdir()) == [
        "docker.tar",
        "files.tar",
        "id",
        "meta.json",
        "oci.tar",
    ]


async def test_the_files_of_an_image_go_to_stdout_alone(tmp_path: Path) -> None:
    context = _context(tmp_path / "hello")
    async with stage(tmp_path) as on:
        done = _raw(on, "build", "-o", "-", context)

    (tmp_path / "seen.tar").write_bytes(done.stdout)
    with tarfile.open(tmp_path / "seen.tar") as archive:
        assert "greeting" in archive.getnames()
    assert b"/hello@sha256:" in done.stderr


async def test_an_image_is_loaded_into_docker_and_runs(tmp_path: Path) -> None:
    context = _context(tmp_path / "hello")
    with tempfile.TemporaryDirectory(prefix="ph-") as short:  # a socket's path has 108 bytes
        async with stage(tmp_path) as on:
            with own_engine(Path(short), on.port, tmp_path / "login") as engine:
                where = {"DOCKER_HOST": f"unix://{short}/docker.sock"}
                done = on.run("build", "-t", "web:1", "--load", context, **where)
                said = engine.run("run", "--rm", "--network", "none", "web:1")

    assert done.returncode == 0, done.stderr
    assert "loaded    web:1 into docker" in done.stderr
    assert said == "hello from a build\n"


async def test_without_an_engine_nothing_is_built_for_it(tmp_path: Path) -> None:
    context = _context(tmp_path / "hello")
    async with stage(tmp_path) as on:
        done = on.run("build", "--load", context, PATH="/nowhere")
        listed = on.run("builds", "ls", "--json")

    assert done.returncode == 1
    assert done.stderr == (
        "error: --load: there is no docker and no podman on this machine\n\n"
        "hint: -o FILE.tar writes the image into a file\n"
    )
    assert json.loads(listed.stdout)["builds"] == []
