"""A context that is packed, fetched and unpacked is the context; a hostile one goes nowhere."""

import io
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.archive import END, ArchiveError, Kind, Member, Reader, header, padding
from pierhead.protocol.client.pack import pack
from pierhead.protocol.context import safe_parts
from pierhead.protocol.errors import Invalid
from pierhead.protocol.ignore import parse_ignore

NAMES = st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name)
MEMBERS = st.builds(
    Member,
    name=NAMES,
    kind=st.sampled_from([Kind.FILE, Kind.FOLDER, Kind.LINK]),
    mode=st.sampled_from([0o644, 0o755]),
    size=st.just(0),
    mtime=st.integers(0, 2**33 - 1),
    target=NAMES,
)


@given(st.lists(st.tuples(MEMBERS, st.binary(max_size=2000)), max_size=5))
def test_what_is_written_is_read(entries: list[tuple[Member, bytes]]) -> None:
    archive, expected = b"", []
    for member, data in entries:
        content = data if member.kind is Kind.FILE else b""
        target = member.target if member.kind is Kind.LINK else b""
        sized = Member(
            name=member.name,
            kind=member.kind,
            mode=member.mode,
            size=len(content),
            mtime=member.mtime,
            target=target,
        )
        archive += header(sized) + content + bytes(padding(len(content)))
        expected.append((sized, content))

    reader = Reader(io.BytesIO(archive + END))

    assert [(member, reader.read(10_000)) for member in reader.members()] == expected


@given(st.binary(max_size=3000))
def test_bytes_that_are_no_archive_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        list(Reader(io.BytesIO(data)).members())


@pytest.mark.parametrize("name", [b"../x", b"a/../../x", b"/etc/passwd", b"a/..", b"a\0b"])
def test_names_that_leave_the_context_are_refused(name: bytes) -> None:
    with pytest.raises(ArchiveError):
        safe_parts(Member(name=name, kind=Kind.FILE))


@pytest.mark.parametrize(
    ("patterns", "path", "out"),
    [
        (["*.md"], "a.md", True),
        (["*.md"], "sub/a.md", False),
        (["**/*.md"], "sub/a.md", True),
        (["*.md", "!keep.md"], "keep.md", False),
        (["!keep.md", "*.md"], "keep.md", True),
        (["node_modules"], "node_modules/x/y", True),
        (["/dist/"], "dist/x", True),
        (["a/**/b"], "a/b", True),
        (["a/**/b"], "a/x/y/b/c", True),
        (["a?c"], "abc", True),
        (["a?c"], "a/c", False),
        (["[ab]x"], "bx", True),
        ([r"\!x"], "!x", True),
        (["# comment"], "# comment", False),
        (["./x"], "x", True),
        (["**"], "any/thing", True),
        (["*", "!a/b"], "a/b", False),
        (["\ufeff*.md"], "a.md", True),
        (["x/../y"], "y", True),
        (["a.c"], "abc", False),
    ],
)
def test_dockerignore(patterns: list[str], path: str, out: bool) -> None:
    ignore = parse_ignore(patterns)
    found = False
    fits: tuple[bool, ...] = ()
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        found, fits = ignore.look("/".join(parts[:depth]), fits)
    assert found is out


def unpacked(packed: Path) -> dict[bytes, tuple[Kind, int, bytes]]:
    with packed.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        reader = Reader(stream)
        found = {}
        for member in reader.members():
            content = member.target if member.kind is Kind.LINK else reader.read(10**6)
            found[member.name] = (member.kind, member.mode, content)
        return found


def test_a_folder_is_packed_with_links_odd_names_and_plain_modes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "run.sh").write_text("x")
    (root / "run.sh").chmod(0o700)
    (root / "link").symlink_to("../outside")
    (root / os.fsdecode(b"odd\xff")).write_text("y")
    (root / "sub" / "secret.md").write_text("z")
    (root / ".dockerignore").write_text("**/*.md\n")
    os.mkfifo(root / "pipe")

    packed = pack(root, tmp_path / "out")

    found = unpacked(packed.file)
    assert found[b"run.sh"] == (Kind.FILE, 0o755, b"x")
    assert found[b"link"] == (Kind.LINK, 0o777, b"../outside")
    assert found[b"odd\xff"] == (Kind.FILE, 0o644, b"y")
    assert found[b"sub/"][0] is Kind.FOLDER
    assert b"sub/secret.md" not in found
    assert packed.left_out == ["sub/secret.md"]
    assert packed.warnings == ["left out pipe: not a file, a folder or a link"]
    assert packed.ref.files == len([1 for kind, _, _ in found.values() if kind is not Kind.FOLDER])


def test_the_dockerfile_is_always_sent_and_kept_files_are_found_in_folders_left_out(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    (root / "dist").mkdir(parents=True)
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "dist" / "keep").write_text("k")
    (root / "dist" / "drop").write_text("d")
    (root / ".dockerignore").write_text("*\n!dist/keep\n")

    found = unpacked(pack(root, tmp_path / "out").file)

    assert sorted(found) == [b".dockerignore", b"Dockerfile", b"dist/keep"]


def test_the_same_tree_gives_the_same_digest(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        root = tmp_path / name
        root.mkdir()
        for file in ("b", "a"):
            (root / file).write_text(file)
            os.utime(root / file, (1, 1))
        digests.add(pack(root, tmp_path / f"{name}.out").ref.digest)
    assert len(digests) == 1


def test_a_bad_ignore_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / ".dockerignore").write_text("ok\n[a\n")

    with pytest.raises(Invalid, match="line 2"):
        pack(tmp_path, tmp_path.with_suffix(".out"))


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["a", "**", "*", "?", "/", "!", "\\", "[", "]", "."]), max_size=12))
def test_any_pattern_is_taken_or_refused(parts: list[str]) -> None:
    try:
        ignore = parse_ignore(["".join(parts)])
    except ValueError:
        return
    assert isinstance(ignore.look("a/b")[0], bool)
