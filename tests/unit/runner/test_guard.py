"""What may be mounted, decided on the file systems of this machine; the real thing is in
tests/integration/backend.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pierhead.runner.adapters import guard
from pierhead.runner.adapters.guard import (
    NOTE,
    RUNC_LOG,
    Content,
    Places,
    allowed,
    content_of,
    is_bind,
    is_within,
    main,
    plain,
)
from pierhead.runner.adapters.isolation import witness_of
from pierhead.runner.domain.failure import Witness


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(
        storage=str(tmp_path / "storage"),
        containers=str(tmp_path / "storage/overlay-containers"),
        context=str(tmp_path / "context"),
        caches=str(tmp_path / "tmp"),
        notes=str(tmp_path / "notes"),
    )
    for folder in (
        "notes",
        "storage/overlay-containers/c1/userdata",
        "context/a b",
        "context-2",
        "tmp/buildah-cache/c",
        "tmp/buildah1/run",
    ):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("storage/overlay-containers/c1/userdata/x", "tmp/buildah1/hosts", "tmp/other"):
        (tmp_path / file).touch()
    return found


GOOD = [
    "context",
    "context/a b",
    "tmp/buildah-cache/c",
    "tmp/buildah1/hosts",
    "storage/overlay-containers/c1/userdata/x",
]
BAD = [
    ".",
    "context-2",
    "context/..",
    "storage",
    "storage/overlay-containers",
    "storage/overlay-containers/c1/userdata",
    "tmp",
    "tmp/other",
    "tmp/buildah-cache",
    "tmp/buildah1",
    "tmp/buildah1/config.json",
]


@pytest.mark.parametrize(
    ("source", "good"), [*((s, True) for s in GOOD), *((s, False) for s in BAD)]
)
def test_only_what_a_step_may_see_passes_whatever_it_is_called(
    tmp_path: Path, places: Places, source: str, good: bool
) -> None:
    (tmp_path / "tmp/buildah1/config.json").touch()
    (tmp_path / "context/link").symlink_to(tmp_path / source)
    bundle = str(tmp_path / "tmp/buildah1")

    assert allowed(str(tmp_path / source), places, bundle) is good
    assert allowed(str(tmp_path / "context/link"), places, bundle) is good


@pytest.mark.parametrize("source", ["/proc", "/proc/sys", "/dev/null", "/sys"])
def test_nothing_of_another_file_system_passes(tmp_path: Path, places: Places, source: str) -> None:
    assert not allowed(source, places, str(tmp_path / "tmp/buildah1"))


def test_a_folder_is_known_by_what_it_is_and_not_by_what_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")

    assert content_of(str(tmp_path / "link")) == content_of(str(tmp_path / "folder"))
    assert content_of("/proc").kind == "proc"


def test_depth_counts_from_the_folder() -> None:
    at = Content("8:1", "/a/b", "ext4", "rw")

    assert is_within(at._replace(path="/a/b"), at, 0)
    assert not is_within(at._replace(path="/a/b"), at, 1)
    assert is_within(at._replace(path="/a/b/c"), at, 1)
    assert not is_within(at._replace(path="/a/bc"), at, 0)
    assert not is_within(at._replace(device="8:2"), at, 0)
    assert is_within(at, at._replace(path="/"), 2)


def test_a_mount_is_a_bind_by_its_type_or_by_its_options() -> None:
    assert is_bind({"type": "bind"})
    assert is_bind({"type": "none", "options": ["rbind", "ro"]})
    assert not is_bind({"type": "proc", "options": ["nosuid"]})


def test_paths_of_the_kernel_are_read_as_they_are_written() -> None:
    assert plain("/a\\040b\\134c") == "/a b\\c"


def test_the_container_is_refused_with_the_target_of_the_mount(
    tmp_path: Path, places: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "places.json").write_text(json.dumps(places._asdict()))
    bundle = tmp_path / "tmp/buildah1"
    arguments = [str(tmp_path / "places.json"), "create", "--bundle", str(bundle), "name"]
    good = {"type": "bind", "source": f"{bundle}/hosts", "destination": "/etc/hosts"}
    bad = {"type": "bind", "source": os.devnull, "destination": "/mnt"}

    groups = {"type": "cgroup", "source": "cgroup", "options": ["nosuid", "rw"]}
    (bundle / "config.json").write_text(json.dumps({"mounts": [good, groups], "hostname": "h"}))
    assert main(arguments) == 0
    assert witness_of(tmp_path / "notes") == Witness()
    assert json.loads((bundle / "config.json").read_text()) == {
        "mounts": [good, {**groups, "options": ["nosuid", "ro"]}],
        "hostname": "h",
    }

    (bundle / "config.json").write_text(json.dumps({"mounts": [good, bad]}))
    assert main(arguments) == 1
    assert "pierhead refuses the mount at /mnt: " in capsys.readouterr().err
    assert witness_of(tmp_path / "notes") == Witness(refused="/mnt")

    (bundle / "config.json").write_text("no JSON")
    assert main(arguments) == 1
    assert "JSONDecodeError" in (witness_of(tmp_path / "notes").fault or "")


def test_what_runc_said_of_an_earlier_step_is_not_said_of_this_one(
    tmp_path: Path, places: Places
) -> None:
    (tmp_path / "places.json").write_text(json.dumps(places._asdict()))
    bundle, notes = tmp_path / "tmp/buildah1", tmp_path / "notes"
    (bundle / "config.json").write_text("{}")
    (notes / RUNC_LOG).write_text('{"level":"error","msg":"one"}\n{"level":"error","msg":"two"}\n')
    assert witness_of(notes).runc == "two"

    assert main([str(tmp_path / "places.json"), "create", "--bundle", str(bundle)]) == 0

    assert witness_of(notes) == Witness()


@pytest.mark.parametrize("said", ["[]", "{", '"x"', "\udcff"])
def test_notes_that_cannot_be_read_are_a_fault_and_none_are_none(tmp_path: Path, said: str) -> None:
    assert witness_of(tmp_path) == Witness()
    (tmp_path / NOTE).write_text(said, "utf-8", "surrogateescape")
    assert (witness_of(tmp_path).fault or "").startswith("the notes of guard and runc cannot be")


AARCH64 = b"\xb7\x00"


@pytest.mark.parametrize(
    ("program", "foreign"),
    [
        ("/native", False),
        ("/foreign", True),
        ("link", True),  # found in the PATH; leads to a file of the root, not of this machine
        ("script", False),
        ("missing", False),
        ("pipe", False),  # is not opened: nobody would write into it
        ("odd\0name", False),
    ],
)
def test_a_program_for_another_kind_of_machine_is_known_by_its_header(
    tmp_path: Path, program: str, *, foreign: bool
) -> None:
    root = tmp_path / "bundle/rootfs"
    (root / "bin").mkdir(parents=True)
    own = Path(sys.executable).read_bytes()[:64]
    (root / "native").write_bytes(own)
    (root / "foreign").write_bytes(own[:18] + AARCH64 + own[20:])
    (root / "bin/link").symlink_to("/foreign")
    (root / "bin/script").write_text("#!/foreign\n")
    os.mkfifo(root / "bin/pipe")
    config = {
        "root": {"path": "rootfs"},
        "process": {"args": [program], "env": ["A=b", "PATH=/nowhere:/bin"], "cwd": "/"},
    }
    code = "import sys, json; sys.path.insert(0, sys.argv[1]); import guard; "
    code += "print(guard.is_foreign(json.loads(sys.argv[2]), sys.argv[3]))"
    script = [sys.executable, "-I", "-S", "-c", code, str(Path(guard.__file__).parent)]
    told = subprocess.run(
        [*script, json.dumps(config), str(tmp_path / "bundle")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert told.stdout.strip() == str(foreign)
