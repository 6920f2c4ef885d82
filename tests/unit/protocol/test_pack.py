"""A folder is described as it is, whatever is in it, and says what it leaves out."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.archive import Kind
from pierhead.protocol.client import pack as module
from pierhead.protocol.client.known import Known
from pierhead.protocol.client.pack import Packed, pack
from pierhead.protocol.context import DEPTH_MAX
from pierhead.protocol.errors import Invalid
from pierhead.protocol.tree import CHUNK_BYTES, Entry, parse_page

NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b".."}
)
TREES = st.dictionaries(st.tuples(NAMES.map(lambda n: b"d" + n), NAMES), st.binary(max_size=300))


def entries(packed: Packed) -> list[Entry]:
    return [entry for page in packed.pages for entry in parse_page(page)]


def contents(packed: Packed) -> dict[bytes, bytes]:
    return {
        entry.name: b"".join(packed.read(digest) for digest, _ in entry.chunks())
        for entry in entries(packed)
        if entry.kind is Kind.FILE
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "Dockerfile").write_text("FROM scratch\n")
    return root


@settings(max_examples=40, deadline=None)
@given(TREES)
def test_every_name_and_byte_is_described_and_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[tuple[bytes, bytes], bytes]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for (parent, name), data in tree.items():
        where = os.path.join(os.fsencode(root), parent)
        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, name), "wb") as file:
            file.write(data)

    packed = pack(root)

    assert contents(packed) == {b"/".join(path): data for path, data in tree.items()}
    assert packed.files == len(tree)
    assert packed.size_bytes == sum(map(len, tree.values()))


def test_the_same_tree_elsewhere_is_the_same(tmp_path: Path) -> None:
    digests = set()
    for number, names in enumerate((["b", "a-", "a"], ["a", "b", "a-"])):
        root = tmp_path / str(number)
        (root / "a!").mkdir(parents=True)
        for name in names:
            (root / name).mkdir()
            (root / name / "file").write_text(name)
            (root / name / "file").chmod(0o600 if number else 0o644)
        digests.add(pack(root).digest)
    assert len(digests) == 1


def test_modes_links_and_empty_folders_are_described(root: Path) -> None:
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o700)
    (root / "empty").mkdir()
    (root / "nothing").touch()
    (root / "link").symlink_to("/etc/passwd")
    (root / "broken").symlink_to("nowhere")

    found = {entry.name: entry for entry in entries(pack(root))}

    assert found[b"run"].executable
    assert not found[b"Dockerfile"].executable
    assert found[b"empty"].kind is Kind.FOLDER
    assert (found[b"nothing"].size, found[b"nothing"].digests) == (0, b"")
    assert (found[b"link"].kind, found[b"link"].target) == (Kind.LINK, b"/etc/passwd")
    assert found[b"broken"].target == b"nowhere"


def test_two_names_of_one_file_are_two_files_and_one_content(root: Path) -> None:
    (root / "one").write_bytes(b"content")
    os.link(root / "one", root / "two")

    packed = pack(root)

    found = {entry.name: entry.digests for entry in entries(packed)}
    assert found[b"one"] == found[b"two"]
    assert contents(packed)[b"two"] == b"content"


def test_a_sparse_file_is_one_chunk_of_zeros_many_times(root: Path) -> None:
    with (root / "disk").open("wb") as file:
        file.truncate(10 * CHUNK_BYTES + 1)

    packed = pack(root)

    (disk,) = (entry for entry in entries(packed) if entry.name == b"disk")
    assert len(disk.digests) == 11 * 32
    assert len({digest for digest, _ in disk.chunks()}) == 2
    assert packed.size_bytes == 10 * CHUNK_BYTES + 1 + len("FROM scratch\n")


def test_what_is_neither_file_nor_folder_nor_link_is_left_out_with_a_word(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        packed = pack(root)
    assert [entry.name for entry in entries(packed)] == [b"Dockerfile"]
    assert packed.warnings == [
        "left out pipe: not a file, a folder or a link",
        "left out socket: not a file, a folder or a link",
    ]


def test_what_is_left_out_is_named_once_with_its_size_the_largest_first(root: Path) -> None:
    (root / "little").write_bytes(b"x" * 10)
    for name in ("a", "b"):
        (root / ".git" / name).mkdir(parents=True)
        (root / ".git" / name / "object").write_bytes(b"x" * 500)
    (root / "src").mkdir()
    (root / "src" / "main").write_text("x")
    (root / ".dockerignore").write_text("*\n!src\n")

    packed = pack(root)

    assert [(one.path, one.size_bytes) for one in packed.left_out] == [
        (".git", 1000),
        ("little", 10),
    ]
    assert packed.files == 3


def test_the_dockerfiles_own_ignore_file_wins(root: Path) -> None:
    (root / "a").write_text("x")
    (root / "b").write_text("x")
    (root / ".dockerignore").write_text("a\n")
    (root / "Dockerfile.dockerignore").write_text("b\n")
    assert [one.path for one in pack(root).left_out] == ["b"]


def test_extra_files_travel_without_touching_the_folder(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "kept").write_text("kept")
    (root / "over").mkdir()
    (root / "over" / "lost").write_text("lost")
    (root / ".dockerignore").write_text("*\n")
    before = sorted(root.rglob("*"))
    extra = {
        "Dockerfile": b"FROM generated\n",
        "sub/new/deep": b"deep",
        "sub/kept": b"instead",
        "over": b"a file where a folder is",
        ".dockerignore": b"",
        "large": b"x" * (CHUNK_BYTES + 1),
    }

    packed = pack(root, extra_files=extra)

    assert contents(packed) == {name.encode(): data for name, data in extra.items()}
    assert sorted(root.rglob("*")) == before
    assert (root / "Dockerfile").read_text() == "FROM scratch\n"
    assert [entry.name for entry in entries(packed)] == [
        b".dockerignore",
        b"Dockerfile",
        b"large",
        b"over",
        b"sub",
        b"sub/kept",
        b"sub/new",
        b"sub/new/deep",
    ]


@pytest.mark.parametrize(
    "names", [["../out"], ["/etc/passwd"], [""], ["."], ["a", "a/b"], ["a/b", "a"], ["a\0"]]
)
def test_an_extra_file_that_has_no_place_is_refused(root: Path, names: list[str]) -> None:
    with pytest.raises(Invalid, match="extra file"):
        pack(root, extra_files=dict.fromkeys(names, b"x"))


def test_a_file_that_shrinks_while_it_is_read_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrinking = root / "log"
    shrinking.write_bytes(b"x" * 100)
    during(monkeypatch, lambda: shrinking.write_bytes(b"x"))
    with pytest.raises(Invalid, match="log became shorter while it was read"):
        pack(root)


def test_a_file_that_grows_while_it_is_read_ends_where_it_was_and_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = root / "log"
    growing.write_bytes(b"x" * 100)
    during(monkeypatch, lambda: growing.write_bytes(b"x" * 150))

    packed = pack(root)

    assert contents(packed)[b"log"] == b"x" * 100
    assert packed.warnings == ["log grew while it was read: what came later is left out"]


def during(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let something happen between the look at `log` and its reading."""
    look = os.fstat

    def and_then(file: int) -> os.stat_result:
        found = look(file)
        if os.readlink(f"/proc/self/fd/{file}").endswith("/log"):
            change()
        return found

    monkeypatch.setattr(os, "fstat", and_then)


def test_a_file_that_was_changed_after_it_was_described_is_not_sent(root: Path) -> None:
    (root / "file").write_bytes(b"before")
    packed = pack(root)
    digests = {entry.name: entry.digests for entry in entries(packed)}
    (root / "file").write_bytes(b"behind")
    with pytest.raises(Invalid, match="file was changed while it was packed"):
        packed.read(digests[b"file"])
    (root / "file").unlink()
    with pytest.raises(Invalid, match="file was removed while it was packed"):
        packed.read(digests[b"file"])


def test_a_context_that_is_too_large_names_its_five_largest_paths(root: Path) -> None:
    (root / "node_modules").mkdir()
    for number in range(50):
        (root / "node_modules" / f"m{number}").write_bytes(bytes(200_000))
    (root / "data" / "raw").mkdir(parents=True)
    (root / "data" / "raw" / "dump.sql").write_bytes(bytes(9_000_000))
    for number in range(2, 8):
        (root / f"f{number}").write_bytes(bytes(number * 1_000_000))

    with pytest.raises(Invalid, match="too large") as refused:
        pack(root, limit_bytes=20_000_000)

    named = str(refused.value).partition("MB): ")[2]
    assert named == (
        "node_modules (10 MB), data/raw/dump.sql (9 MB), f7 (7 MB), f6 (6 MB), f5 (5 MB)"
    )
    assert refused.value.problem.hint is not None
    assert ".dockerignore" in refused.value.problem.hint


def test_a_folder_that_is_swapped_for_a_link_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (root / "sub").mkdir()
    opened = os.open

    def swap(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "sub":
            (root / "sub").rmdir()
            (root / "sub").symlink_to(tmp_path / "secret")
        return opened(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(Invalid, match="sub cannot be read"):
        pack(root)


def test_folders_without_end_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEPTH_MAX", 6)
    (root / "1/2/3/4/5/6").mkdir(parents=True)
    with pytest.raises(Invalid, match="nested deeper than 6"):
        pack(root)


def test_folders_as_deep_as_may_be_are_packed(root: Path) -> None:
    deep = "/".join(["d"] * (DEPTH_MAX - 1))
    before = len(os.listdir("/proc/self/fd"))
    (root / deep).mkdir(parents=True)
    (root / deep / "file").write_text("deep")

    plain = pack(root)
    with_extra = pack(root, extra_files={f"{deep}/more": b"deeper"})

    assert (plain.files, with_extra.files) == (2, 3)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is not a folder"):
        pack(tmp_path / "nothing")


class TestKnown:
    """What did not change is not read again; what may have changed is."""

    @pytest.fixture
    def reads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the names of files that are opened."""
        names: list[str] = []
        opened = os.open

        def note(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is not None and not flags & os.O_DIRECTORY:
                names.append(path)
            return opened(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", note)
        return names

    @pytest.fixture
    def settled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all files of this test be old."""
        monkeypatch.setattr("pierhead.protocol.client.known.SETTLED_NS", -(10**12))

    def packed(self, root: Path, cache: Path) -> Packed:
        known = Known.load(root, cache)
        packed = pack(root, known=known)
        known.save(root, cache)
        return packed

    @pytest.mark.usefixtures("settled")
    def test_an_unchanged_file_is_not_read(
        self, root: Path, tmp_path: Path, reads: list[str]
    ) -> None:
        first = self.packed(root, tmp_path)
        reads.clear()
        second = self.packed(root, tmp_path)
        assert reads == []
        assert second.digest == first.digest
        assert contents(second) == {b"Dockerfile": b"FROM scratch\n"}

    @pytest.mark.usefixtures("settled")
    @pytest.mark.parametrize("what", ["size", "mtime", "ctime", "inode"])
    def test_a_file_that_looks_changed_is_read(
        self, what: str, root: Path, tmp_path: Path, reads: list[str]
    ) -> None:
        file = root / "Dockerfile"
        self.packed(root, tmp_path)
        reads.clear()
        match what:
            case "size":
                file.write_text("FROM other\n")
            case "mtime":
                os.utime(file, (1, 1))
            case "ctime":
                status = file.stat()
                file.write_text("FROM SCRATCH\n")
                while file.stat().st_ctime_ns == status.st_ctime_ns:  # the kernel's clock is coarse
                    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            case _:
                status = file.stat()
                (root / "new").write_text("FROM SCRATCH\n")
                (root / "new").rename(file)
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

        packed = self.packed(root, tmp_path)

        assert reads == ["Dockerfile"]
        assert contents(packed)[b"Dockerfile"] == file.read_bytes()

    def test_a_file_that_was_changed_just_now_is_read_again(
        self, root: Path, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pierhead.protocol.client.known.SETTLED_NS", 10**12)  # just now lasts
        self.packed(root, tmp_path)
        reads.clear()
        self.packed(root, tmp_path)
        assert reads == ["Dockerfile"]

    @pytest.mark.usefixtures("settled")
    def test_what_was_remembered_of_another_folder_or_is_damaged_does_not_count(
        self, root: Path, tmp_path: Path, reads: list[str]
    ) -> None:
        self.packed(root, tmp_path)
        (file,) = tmp_path.glob("*.seen")
        file.write_bytes(file.read_bytes()[:-3])
        reads.clear()
        self.packed(root, tmp_path)
        assert reads == ["Dockerfile"]
        other = tmp_path / "other"
        root.rename(other)
        reads.clear()
        self.packed(other, tmp_path)
        assert reads == ["Dockerfile"]

    def test_a_folder_that_cannot_be_written_is_no_error(self, root: Path) -> None:
        assert self.packed(root, Path("/proc/nowhere")).files == 1
