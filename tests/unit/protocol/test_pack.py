"""What a packed folder tells about itself, and what it does when the folder is not as it was."""

import os
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.client import pack as module
from pierhead.protocol.client.pack import pack
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import Invalid

PARTS = st.binary(min_size=1, max_size=120).filter(
    lambda name: (
        not {b"/", b"\0"} & {name[i : i + 1] for i in range(len(name))}
        and name not in {b".", b"..", b".dockerignore", b"Dockerfile", b"Dockerfile.dockerignore"}
    )
)
TREES = st.dictionaries(st.tuples(PARTS, PARTS), st.binary(max_size=2000), max_size=5)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "Dockerfile").write_text("FROM scratch\n")
    return root


@settings(max_examples=40, deadline=None)
@given(TREES)
def test_another_tar_reads_every_name_and_byte(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[tuple[bytes, bytes], bytes]
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    root = folder / "root"
    root.mkdir()
    for (parent, name), data in tree.items():
        where = os.path.join(os.fsencode(root), parent)
        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, name), "wb") as file:
            file.write(data)

    packed = pack(root, folder / "out")

    plain = zstandard.ZstdDecompressor().stream_reader(packed.file.read_bytes()).read()
    (folder / "out.tar").write_bytes(plain)
    with tarfile.open(folder / "out.tar", encoding="utf-8") as tar:
        found = {}
        for member in tar.getmembers():
            if content := tar.extractfile(member) if member.isfile() else None:
                found[os.fsencode(member.name)] = content.read()
    assert found == {b"/".join(path): data for path, data in tree.items()}
    assert packed.ref.unpacked_bytes == len(plain)
    assert packed.ref.files == len(tree)
    assert packed.ref.digest == digest_of(packed.file.read_bytes())
    assert packed.ref.size_bytes == packed.file.stat().st_size


def test_folders_that_are_left_out_are_named_once_and_not_entered(root: Path) -> None:
    (root / ".git" / "objects").mkdir(parents=True)
    (root / ".git" / "objects" / "x").write_text("x")
    (root / "src").mkdir()
    (root / "src" / "main").write_text("x")
    (root / ".dockerignore").write_text("*\n!src\n")

    packed = pack(root, root.with_suffix(".out"))

    assert packed.left_out == [".git"]
    assert packed.ref.files == 3


def test_the_dockerfiles_own_ignore_file_wins(root: Path) -> None:
    (root / "a").write_text("x")
    (root / "b").write_text("x")
    (root / ".dockerignore").write_text("a\n")
    (root / "Dockerfile.dockerignore").write_text("b\n")
    assert pack(root, root.with_suffix(".out")).left_out == ["b"]


def test_a_file_that_shrinks_while_it_is_read_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrinking = root / "log"
    shrinking.write_bytes(b"x" * 100)
    monkeypatch.setattr(module, "_PIECE", 10)
    read = os.read

    def shrink(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        if data == b"x" * 10:
            shrinking.write_bytes(b"x")
        return data

    monkeypatch.setattr(os, "read", shrink)
    with pytest.raises(Invalid, match="log became shorter while it was read"):
        pack(root, root.with_suffix(".out"))


def test_a_context_that_is_too_large_names_its_five_largest_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 8):
        (root / f"f{number}").write_bytes(os.urandom(number * 1024))
    monkeypatch.setattr(module, "CONTEXT_BYTES_MAX", 20_000)

    with pytest.raises(Invalid, match="the context is too large") as refused:
        pack(root, root.with_suffix(".out"))

    named = str(refused.value).partition("files): ")[2]
    assert [part.split()[0] for part in named.split(", ")] == ["f7", "f6", "f5", "f4", "f3"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is not a folder"):
        pack(tmp_path / "nothing", tmp_path / "out")
