"""What may be mounted, decided on the file systems of this machine; the real thing is in
tests/integration/backend.
"""

import json
import os
from pathlib import Path

import pytest

from pierhead.runner.adapters.guard import (
    Content,
    Places,
    allowed,
    content_of,
    is_bind,
    is_within,
    main,
    plain,
)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(
        storage=str(tmp_path / "storage"),
        containers=str(tmp_path / "storage/overlay-containers"),
        context=str(tmp_path / "context"),
        caches=str(tmp_path / "tmp"),
    )
    for folder in (
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
    assert json.loads((bundle / "config.json").read_text()) == {
        "mounts": [good, {**groups, "options": ["nosuid", "ro"]}],
        "hostname": "h",
    }

    (bundle / "config.json").write_text(json.dumps({"mounts": [good, bad]}))
    assert main(arguments) == 1
    assert "pierhead refuses the mount at /mnt: " in capsys.readouterr().err
