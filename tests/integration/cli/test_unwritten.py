"""What a build gives cannot be written: which file, why, and what is there all the same."""

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.test_commands import PIERHEAD, Machine
from tests.ports import free_port
from tests.small_disk import small_disk

DOCKERFILE = "FROM scratch\nCOPY busybox /bin/busybox\n"
CACHED = "and build again: the steps come from the cache"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("machine"), free_port())
    up = machine.type("up", "--port", str(machine.port), "--host", "127.0.0.1")
    try:
        assert up.returncode == 0, up.stderr
        machine.context(DOCKERFILE)
        yield machine
    finally:
        assert machine.type("up", "--stop").returncode == 0


@pytest.fixture(scope="module")
def reference(machine: Machine) -> str:
    built = machine.type("build", "web")
    assert built.returncode == 0, built.stderr
    return built.stdout.strip()


def say(machine: Machine, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell; the control plane is named, so that its folder is not looked at."""
    url = f"http://127.0.0.1:{machine.port}"
    token = (machine.folder / "config/token").read_text().strip()
    named = {"PIERHEAD_URL": url, "PIERHEAD_TOKEN": token, "PIERHEAD": str(PIERHEAD)}
    return subprocess.run(
        ["bash", "-c", line],
        env={**machine.environment, **named, **more},
        cwd=machine.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refusal(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    error, _, hint = done.stderr.partition("error: ")[2].partition("\n\nhint: ")
    return error, hint.strip()


@pytest.mark.parametrize("option", ["--iidfile", "--metadata-file"])
def test_a_full_file_is_named_and_the_image_is_there(
    machine: Machine, reference: str, option: str
) -> None:
    done = say(machine, f"$PIERHEAD build {option} /dev/full web")

    assert refusal(done) == (
        f"/dev/full cannot be written: No space left on device; "
        f"the image is there all the same: {reference}",
        f"free some space there, or name another, {CACHED}",
    )
    assert done.stdout == f"{reference}\n"


@pytest.mark.parametrize("kind", ["oci", "docker", "tar"])
def test_a_full_disk_gets_no_part_of_an_archive(
    machine: Machine, reference: str, tmp_path: Path, kind: str
) -> None:
    with small_disk(tmp_path / "disk", "size=256k") as disk:
        done = say(machine, f"$PIERHEAD build -o type={kind},dest={disk}/image.tar web")
        left = list(disk.iterdir())

    error, hint = refusal(done)
    assert error.startswith(f"{disk}/image.tar cannot be written: No space left on device; ")
    assert error.endswith(reference)
    assert hint == f"free some space there, or name another, {CACHED}"
    assert left == []


def test_a_full_folder_for_what_is_there_for_now_is_told_from_the_file(
    machine: Machine, reference: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "size=256k") as disk:
        line = f"$PIERHEAD build -o {tmp_path}/image.tar web"
        error, hint = refusal(say(machine, line, TMPDIR=str(disk)))

    assert error.startswith(f"{disk} cannot be written: No space left on device; ")
    assert error.endswith(reference)
    assert "TMPDIR=DIR" in hint


@pytest.mark.parametrize("words", ["--iidfile image", "--metadata-file image"])
def test_a_shell_that_lets_no_file_grow_is_told_how_to_let_it(
    machine: Machine, reference: str, words: str
) -> None:
    done = say(machine, f"ulimit -f 0; $PIERHEAD build {words} web")

    assert refusal(done) == (
        f"image cannot be written: File too large; the image is there all the same: {reference}",
        f"ulimit -f unlimited, {CACHED}",
    )
    assert not (machine.folder / "image").exists()


@pytest.mark.parametrize("words", ["build web", "build -q web", "build -o - web", "builds watch @"])
def test_an_output_that_takes_no_more_leaves_the_image_and_where_to_find_it(
    machine: Machine, reference: str, words: str
) -> None:
    done = say(machine, f"$PIERHEAD {words} > /dev/full")

    error, hint = refusal(done)
    assert error == (
        f"the output takes no more: No space left on device; "
        f"the image is there all the same: {reference}"
    )
    shown = say(machine, f"$PIERHEAD {hint.partition(': pierhead ')[2]} --json")
    assert json.loads(shown.stdout)["reference"] == reference


@pytest.mark.usefixtures("reference")
def test_events_that_nobody_takes_leave_the_build_going_on(machine: Machine) -> None:
    done = say(machine, "$PIERHEAD build --json web > /dev/full")

    error, hint = refusal(done)
    assert error.startswith("the output takes no more: No space left on device; b_")
    assert say(machine, f"$PIERHEAD {hint.partition(': pierhead ')[2]}").returncode == 0


@pytest.mark.usefixtures("nobody_named")
def test_a_build_that_is_for_once_was_made_all_the_same(tmp_path: Path) -> None:
    alone = Machine(tmp_path, 0)
    alone.context(DOCKERFILE)

    done = subprocess.run(
        [PIERHEAD, "build", "--iidfile", "/dev/full", "web"],
        env=alone.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    error, _ = refusal(done)
    assert error.startswith("/dev/full cannot be written: No space left on device; ")
    assert error.endswith(f"the image was built all the same: {done.stdout.strip()}")


@pytest.mark.usefixtures("reference")
def test_a_device_stays_one_and_a_link_stays_a_link(machine: Machine, tmp_path: Path) -> None:
    device = tmp_path / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (tmp_path / "link.tar").symlink_to(tmp_path / "image.tar")

    outputs = f"-o type=tar,dest={device} -o {tmp_path}/link.tar --iidfile {device}"
    done = say(machine, f"$PIERHEAD build {outputs} web")

    assert done.returncode == 0, done.stderr
    assert stat.S_ISCHR(device.stat().st_mode)
    assert (tmp_path / "link.tar").is_symlink()
    assert (tmp_path / "image.tar").stat().st_size > 0


def test_a_folder_is_refused_before_anything_is_built(machine: Machine, tmp_path: Path) -> None:
    done = say(machine, f"$PIERHEAD build --iidfile {tmp_path} web")

    assert done.returncode == 2
    assert done.stderr == (
        f"error: --iidfile {tmp_path}: that is a folder\n\nhint: name a file: {tmp_path}/FILE\n"
    )


@pytest.mark.parametrize("words", ["build web", "status", "builds", "up --plan", "serve"])
@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("/dev/null", "/dev/null is a file, and no folder"),
        ("/dev/null/x", "/dev/null is a file, and a folder has to be there: /dev/null/x"),
    ],
)
def test_a_file_where_the_folder_of_commands_should_be_is_named_with_its_variable(
    machine: Machine, words: str, folder: str, why: str
) -> None:
    done = subprocess.run(
        [PIERHEAD, *words.split()],
        env={**machine.environment, "PIERHEAD_CONFIG": folder},
        cwd=machine.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert done.stderr.endswith(
        f"error: PIERHEAD_CONFIG: {why}\n\n"
        "hint: name a folder: PIERHEAD_CONFIG=DIR, or: unset PIERHEAD_CONFIG\n"
    )
