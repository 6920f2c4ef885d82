"""A context is unpacked inside its folder or not at all."""

import contextlib
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.archive import END, ArchiveError, Kind, Member, header, padding
from pierhead.protocol.client.pack import Packed, pack
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import IntegrityError, Unavailable
from pierhead.protocol.plan import ContextRef
from pierhead.protocol.tree import CHUNK_BYTES, parse_page
from pierhead.runner.adapters import workspace
from pierhead.runner.adapters.unpack import unpack
from pierhead.runner.adapters.workspace import DiskWorkspace, fetch
from pierhead.runner.testing import away
from tests.contexts import described


def file(name: bytes, data: bytes = b"x", mode: int = 0o644) -> bytes:
    member = Member(name=name, kind=Kind.FILE, size=len(data), mode=mode)
    return header(member) + data + bytes(padding(len(data)))


def link(name: bytes, target: bytes, kind: Kind = Kind.LINK) -> bytes:
    return header(Member(name=name, kind=kind, target=target))


def device(name: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = tarfile.CHRTYPE
    return info.tobuf(tarfile.USTAR_FORMAT)


def unpacked(folder: Path, tar: bytes, *, said: int | None = None, files: int = 99) -> Path:
    """Write a context and unpack it below `folder`."""
    packed = folder / "context.tar.zst"
    packed.write_bytes(zstandard.compress(tar))
    size = len(tar) if said is None else said
    unpack(packed, folder / "root", ref(unpacked_bytes=size, files=files))
    return folder / "root"


def ref(*, unpacked_bytes: int = 0, files: int = 0) -> ContextRef:
    return ContextRef(
        digest=digest_of(b"another tree"), size_bytes=0, unpacked_bytes=unpacked_bytes, files=files
    )


def archive(packed: Packed) -> tuple[bytes, ContextRef]:
    """Return the tar.zst of a context, a frame for each page, as the router makes it."""
    parts = []
    for page in packed.pages:
        tar = bytearray()
        for entry in parse_page(page):
            tar += header(entry.member())
            tar += b"".join(packed.read(digest) for digest, _ in entry.chunks())
            tar += bytes(padding(entry.size))
        parts.append(bytes(tar))
    parts.append(END)
    wanted = ContextRef(
        digest=packed.digest,
        size_bytes=packed.size_bytes,
        unpacked_bytes=sum(map(len, parts)),
        files=packed.files,
    )
    return b"".join(map(zstandard.compress, parts)), wanted


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep" / "er" / ("n" * 200)).write_text("long")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o700)
    (source / os.fsdecode(b"\xff\xfe\n")).write_bytes(b"odd")
    (source / "link").symlink_to("/etc/" + "p" * 150)
    (source / "large").write_bytes(os.urandom(CHUNK_BYTES) + b"more")
    data, wanted = archive(pack(source))
    (tmp_path / "packed").write_bytes(data)

    unpack(tmp_path / "packed", tmp_path / "root", wanted)

    root = tmp_path / "root"
    assert (root / "deep" / "er" / ("n" * 200)).read_text() == "long"
    assert (root / "large").read_bytes() == (source / "large").read_bytes()
    assert (root / "empty").is_dir()
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (root / os.fsdecode(b"\xff\xfe\n")).read_bytes() == b"odd"
    assert os.readlink(root / "link") == "/etc/" + "p" * 150
    assert int((root / "run.sh").stat().st_mtime) == int((source / "run.sh").stat().st_mtime)


HOSTILE = {
    "a name with ..": file(b"../escaped"),
    "an absolute name": file(b"/tmp/escaped"),
    "a file below a link": link(b"door", b"..") + file(b"door/escaped"),
    "a file over a link": link(b"door", b"../escaped") + file(b"door"),
    "a folder over a link": link(b"door", b"..")
    + header(Member(name=b"door/new", kind=Kind.FOLDER)),
    "a hard link to outside": link(b"stolen", b"../secret", Kind.HARD_LINK),
    "a hard link by a link": link(b"door", b"..") + link(b"s", b"door/secret", Kind.HARD_LINK),
    "a device": device("null"),
    "a file twice": file(b"a") + file(b"a"),
    "a NUL in a target": link(b"a", b"b\0c" + b"d" * 200),
    "a file as a folder": file(b"a") + file(b"a/b"),
    "the root as a link": link(b".", b"/etc") + file(b"a/../../b"),
}


@pytest.mark.parametrize("tar", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_member_is_refused_and_nothing_is_outside(tmp_path: Path, tar: bytes) -> None:
    (tmp_path / "secret").write_text("secret")

    with pytest.raises(ArchiveError):
        unpacked(tmp_path, tar + END)

    assert {path.name for path in tmp_path.iterdir()} == {"secret", "root", "context.tar.zst"}
    assert (tmp_path / "secret").stat().st_nlink == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Kind)),
            st.sampled_from([b"a", b"b", b"a/b", b"b/a", b"a/../b", b".", b"b/../../x"]),
            st.sampled_from([b"a", b"..", b"../x", b"/", b"a/b", b"."]),
        ),
        max_size=6,
    )
)
def test_no_order_of_links_and_files_leads_outside(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[Kind, bytes, bytes]]
) -> None:
    place = tmp_path_factory.mktemp("context")
    tar = b"".join(
        file(name) if kind is Kind.FILE else header(Member(name=name, kind=kind, target=target))
        for kind, name, target in members
    )
    with contextlib.suppress(ArchiveError, IntegrityError):
        unpacked(place, tar + END)

    assert {path.name for path in place.iterdir()} == {"root", "context.tar.zst"}


def test_a_small_file_that_unpacks_to_a_huge_one_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="larger than"):
        unpacked(tmp_path, file(b"zeros", bytes(64 * 2**20)) + END, said=2**20)

    assert (tmp_path / "root" / "zeros").stat().st_size <= 2**20


def test_more_files_than_were_said_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="more files"):
        unpacked(tmp_path, file(b"a") + file(b"b") + END, files=1)


@pytest.mark.parametrize("data", [b"", b"not zstd at all", zstandard.compress(b"not a tar")])
def test_what_is_no_context_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "packed").write_bytes(data)

    with pytest.raises((ArchiveError, IntegrityError)):
        unpack(tmp_path / "packed", tmp_path / "root", ref(unpacked_bytes=10**6))


class Source:
    """Gives a context from an offset on, cut as a list says; afterwards whole."""

    def __init__(self, data: bytes, *cuts: int) -> None:
        self.data = data
        self.cuts = list(cuts)
        self.offsets: list[int] = []

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        self.offsets.append(offset)
        rest = self.data[offset:]
        if self.cuts:
            yield rest[: self.cuts.pop(0)]
            raise away()
        yield rest


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "AGAIN_SECONDS", 0.0)


async def test_a_cut_context_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    data = bytes(range(256))
    source = Source(data, 10, 0, 100)

    await fetch(source.read, ref(unpacked_bytes=256), tmp_path / "packed")

    assert (tmp_path / "packed").read_bytes() == data
    assert source.offsets == [0, 10, 10, 110]


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "a byte of a file": lambda tar: tar.replace(b"content", b"c0ntent"),
    "a name": lambda tar: file(b"b", b"content") + END,
    "a mode": lambda tar: file(b"a", b"content", mode=0o755) + END,
    "a kind": lambda tar: link(b"a", b"content") + END,
    "one file less": lambda tar: END,
    "one more folder": lambda tar: header(Member(name=b"0", kind=Kind.FOLDER)) + tar,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_tree_than_was_promised_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    packed = described({"a": b"content"}, executable=False)
    _, wanted = archive(packed)
    wanted = msgspec.structs.replace(wanted, unpacked_bytes=10**6)
    true = file(b"a", b"content") + END
    for name, tar in (("true", true), ("false", change(true))):
        (tmp_path / name).write_bytes(zstandard.compress(tar))

    unpack(tmp_path / "true", tmp_path / "first", wanted)
    with pytest.raises(IntegrityError):
        unpack(tmp_path / "false", tmp_path / "second", wanted)


def test_times_are_no_part_of_the_promise(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"content")
    digests = set()
    for mtime in (1, 2):
        os.utime(tmp_path / "source" / "a", (mtime, mtime))
        digests.add(pack(tmp_path / "source").digest)
    assert len(digests) == 1


async def test_a_context_that_goes_on_beyond_all_measure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError):
        await fetch(Source(bytes(3 * 2**20)).read, ref(unpacked_bytes=1), tmp_path / "packed")


async def test_a_context_that_never_comes_is_given_up(tmp_path: Path) -> None:
    source = Source(b"abc", *[0] * 1000)

    with pytest.raises(Unavailable):
        await fetch(source.read, ref(unpacked_bytes=3), tmp_path / "packed")


async def test_what_is_deeper_than_python_can_call_itself_is_removed(tmp_path: Path) -> None:
    here = DiskWorkspace(tmp_path / "b_1.1")
    current = os.open(here.folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=current)
        following = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = following
    os.close(current)

    await here.remove()

    assert not here.folder.exists()


async def test_a_machine_without_room_for_a_process_removes_nothing_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = DiskWorkspace(tmp_path / "b_1.1")
    monkeypatch.setenv("PATH", str(tmp_path))  # where no program is that could be started

    await here.remove()

    assert here.folder.exists()


def test_a_workspace_that_was_left_behind_begins_empty(tmp_path: Path) -> None:
    DiskWorkspace(tmp_path / "b_1.1").folder.joinpath("left").touch()

    assert list(DiskWorkspace(tmp_path / "b_1.1").folder.iterdir()) == []
