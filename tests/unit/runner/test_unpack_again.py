"""A context that is unpacked over an earlier one is the same as one that is unpacked alone."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.archive import END, ArchiveError
from pierhead.protocol.client.pack import pack
from pierhead.protocol.errors import IntegrityError
from pierhead.protocol.tree import CHUNK_BYTES
from pierhead.runner.adapters.unpack import unpack
from tests.unit.runner.test_workspace import archive, file, ref

Tree = dict[str, tuple[str, bytes, int]]  # by name: kind, content or target, mtime
NAMES = ["a", "a/b", "a/c", "a-b", "b", "b/c", "b/c/d", "z", "\udcff"]


def make(folder: Path, tree: Tree) -> None:
    folder.mkdir()
    for name, (kind, content, mtime) in sorted(tree.items()):
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                path.mkdir(exist_ok=True)
            elif kind == "link":
                path.symlink_to(os.fsdecode(content))
            else:
                path.write_bytes(content)
                path.chmod(0o755 if kind == "program" else 0o644)
                os.utime(path, (mtime, mtime))
        except OSError:
            continue  # its parent is no folder, or it is there


def seen(root: Path) -> dict[bytes, tuple[int, bytes, int]]:
    """Return all that a build could see."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                found[path] = (0, os.readlink(path), 0)
            elif stat.S_ISDIR(info.st_mode):
                found[path] = (info.st_mode, b"", 0)
            else:
                with open(path, "rb") as content:
                    found[path] = (info.st_mode, content.read(), info.st_mtime_ns)
    return {os.path.relpath(path, os.fsencode(root)): what for path, what in found.items()}


def unpack_into(root: Path, source: Path) -> None:
    data, wanted = archive(pack(source))
    packed = root.with_name("packed")
    packed.write_bytes(data)
    unpack(packed, root, wanted)


trees = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(
        st.sampled_from(["file", "program", "folder", "link"]),
        st.sampled_from([b"x", b"y", b"longer"]),
        st.sampled_from([1_000, 2_000]),
    ),
)


@settings(max_examples=60, deadline=None)
@given(trees, trees)
def test_whatever_was_there_before(
    tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree
) -> None:
    place = tmp_path_factory.mktemp("trees")
    make(place / "before", before)
    make(place / "after", after)

    unpack_into(place / "root", place / "before")
    unpack_into(place / "root", place / "after")
    unpack_into(place / "alone", place / "after")

    assert seen(place / "root") == seen(place / "alone")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make(
        tmp_path / "source",
        {"a/one": ("file", b"one", 1), "a/two": ("file", b"two", 2), "c": ("file", b"c", 3)},
    )
    return tmp_path / "source"


def test_only_what_differs_is_written(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "large").write_bytes(bytes(CHUNK_BYTES) + b"x" * CHUNK_BYTES + b"end")
    unpack_into(tmp_path / "root", source)
    (source / "a" / "two").write_bytes(b"TWO")
    (source / "large").write_bytes(bytes(CHUNK_BYTES) + b"y" * CHUNK_BYTES + b"end")
    written: list[bytes] = []
    real = os.pwrite

    def noted(descriptor: int, data: memoryview, offset: int) -> int:
        written.append(bytes(data[:3]))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", noted)
    unpack_into(tmp_path / "root", source)

    assert written == [b"TWO", b"yyy"]
    assert (tmp_path / "root" / "large").read_bytes() == (source / "large").read_bytes()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link_out(path: Path) -> None:
    path.symlink_to(path.parent.parent.parent / "outside")


def _second_name(path: Path) -> None:
    path.hardlink_to(path.parent.parent.parent / "outside")


def _folder(path: Path) -> None:
    (path / "with" / "more").mkdir(parents=True)


def _deep(path: Path) -> None:
    current = os.open(path.parent, os.O_RDONLY)
    name = path.name
    for _ in range(1500):
        os.mkdir(name, dir_fd=current)
        following = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current, name = following, "d"
    os.close(current)


@pytest.mark.parametrize("odd", [_pipe, _link_out, _second_name, _folder, _deep])
@pytest.mark.parametrize("name", ["two", "more"])
def test_what_has_no_place_in_a_context_is_taken_away(
    tmp_path: Path, source: Path, odd: Callable[[Path], None], name: str
) -> None:
    (tmp_path / "outside").write_bytes(b"two")
    unpack_into(tmp_path / "root", source)
    place = tmp_path / "root" / "a" / name
    place.unlink(missing_ok=True)
    odd(place)
    (source / "a" / "two").write_bytes(b"2")

    unpack_into(tmp_path / "root", source)
    unpack_into(tmp_path / "alone", source)

    assert seen(tmp_path / "root") == seen(tmp_path / "alone")
    assert (tmp_path / "outside").read_bytes() == b"two"


def test_a_folder_that_is_a_link_now_is_not_gone_through(tmp_path: Path, source: Path) -> None:
    unpack_into(tmp_path / "root", source)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "one").write_bytes(b"mine")
    folder = tmp_path / "root" / "a"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path / "outside")

    unpack_into(tmp_path / "root", source)

    assert (tmp_path / "outside" / "one").read_bytes() == b"mine"
    assert (tmp_path / "root" / "a" / "one").read_bytes() == b"one"
    assert not (tmp_path / "root" / "a").is_symlink()


@pytest.mark.parametrize(
    "tar",
    [
        file(b"a") + file(b"a") + END,
        file(b"b") + file(b"a") + END,
        file(b"a/b") + file(b"c") + file(b"a/d") + END,
        file(b"../a") + END,
        file(b"a"),
    ],
)
def test_what_is_wrong_alone_is_wrong_over_another(tmp_path: Path, tar: bytes) -> None:
    (tmp_path / "packed").write_bytes(zstandard.compress(tar))
    for root in (tmp_path / "root", tmp_path / "alone"):
        if root.name == "root":
            root.mkdir()
            (root / "a").write_bytes(b"x")
        with pytest.raises((ArchiveError, IntegrityError)):
            unpack(tmp_path / "packed", root, ref(unpacked_bytes=10**6, files=9))


def test_another_tree_than_was_promised_is_refused_over_one_as_well(
    tmp_path: Path, source: Path
) -> None:
    unpack_into(tmp_path / "root", source)
    _, wanted = archive(pack(source))
    (source / "c").write_bytes(b"another")
    data, _ = archive(pack(source))
    (tmp_path / "packed").write_bytes(data)

    with pytest.raises(IntegrityError):
        unpack(tmp_path / "packed", tmp_path / "root", wanted)
