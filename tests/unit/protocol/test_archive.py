"""The tar of a context: what is written is read again, and what others write never surprises."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.archive import (
    BLOCK,
    END,
    ArchiveError,
    Kind,
    Member,
    Reader,
    header,
    padding,
)

NAMES = st.binary(min_size=1, max_size=400).filter(lambda name: b"\0" not in name)
FILES = st.tuples(NAMES, st.binary(max_size=1500), st.integers(0, 0o777), st.integers(0, 2**32))


def packed(*parts: bytes) -> Reader:
    return Reader(io.BytesIO(b"".join(parts) + END))


def contents(reader: Reader) -> bytes:
    return b"".join(iter(lambda: reader.read(100), b""))


def damaged(field: slice, value: bytes) -> bytes:
    """A header with one field replaced and the checksum made right again."""
    block = bytearray(header(Member(name=b"file", kind=Kind.FILE)))
    block[field] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(records: bytes, member: bytes) -> bytes:
    block = bytearray(header(Member(name=b"pax", kind=Kind.FILE, size=len(records))))
    block[156:157] = b"x"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + records + bytes(padding(len(records))) + member


@given(st.lists(FILES, max_size=5))
def test_files_with_any_names_are_read_as_they_were_written(
    files: list[tuple[bytes, bytes, int, int]],
) -> None:
    parts = []
    for name, data, mode, mtime in files:
        member = Member(name=name, kind=Kind.FILE, mode=mode, size=len(data), mtime=mtime)
        parts += [header(member), data, bytes(padding(len(data)))]

    reader = packed(*parts)

    found = [(m.name, contents(reader), m.mode, m.mtime) for m in reader.members()]
    assert found == files


@given(NAMES, NAMES, st.sampled_from([Kind.LINK, Kind.HARD_LINK]))
def test_links_keep_their_targets(name: bytes, target: bytes, kind: Kind) -> None:
    [found] = packed(header(Member(name=name, kind=kind, target=target))).members()

    assert (found.name, found.target, found.kind) == (name, target, kind)


@given(NAMES.filter(lambda name: not name.endswith(b"/")))
def test_python_reads_what_we_write(name: bytes) -> None:
    data = header(Member(name=name, kind=Kind.FILE, size=3)) + b"abc".ljust(BLOCK, b"\0") + END

    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        [found] = tar.getmembers()

    assert found.name.encode("utf-8", "surrogateescape") == name
    assert found.size == 3


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_python_writes_is_read_in_every_form(form: int) -> None:
    name = "folder/" * 14 + "file"
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=form) as tar:
        info = tarfile.TarInfo(name)
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))

    reader = Reader(io.BytesIO(output.getvalue()))

    assert [(m.name.decode(), contents(reader)) for m in reader.members()] == [(name, b"hello")]


def test_content_that_is_not_read_is_passed_over() -> None:
    one = header(Member(name=b"a", kind=Kind.FILE, size=700)) + bytes(1024)
    two = header(Member(name=b"b", kind=Kind.FOLDER))

    assert [m.name for m in packed(one, two).members()] == [b"a", b"b"]


@given(st.integers(0, 3 * BLOCK - 1))
def test_an_archive_that_is_cut_anywhere_is_refused(size: int) -> None:
    whole = header(Member(name=b"a", kind=Kind.FILE, size=700)) + b"x" * 700 + bytes(324)

    with pytest.raises(ArchiveError, match="cut"):
        list(Reader(io.BytesIO(whole[:size])).members())


@given(st.integers(0, BLOCK * 8 - 1))
def test_a_flipped_bit_in_a_header_is_noticed(bit: int) -> None:
    member = Member(name=b"some/file", kind=Kind.FILE, mode=0o755)
    block = bytearray(header(member))
    block[bit // 8] ^= 1 << bit % 8

    try:
        [found] = packed(bytes(block)).members()
    except ArchiveError:
        return
    # The checksum does not cover itself: it may be written in more than one way.
    assert bit // 8 in range(148, 156)
    assert found == member


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (slice(124, 136), b"-0000000001\0"),
        (slice(124, 136), b"0o000000017\0"),
        (slice(124, 136), b"1_000000000\0"),
        (slice(124, 136), b"99999999999\0"),
        (slice(136, 148), b"\xff" * 12),
        (slice(136, 148), b"\x80" + b"\x7f" * 11),
        (slice(156, 157), b"3"),
        (slice(156, 157), b"6"),
        (slice(156, 157), b"S"),
    ],
    ids=["negative", "prefix", "underscore", "not octal", "before time", "after time",
         "device", "pipe", "sparse"],
)  # fmt: skip
def test_a_header_that_no_context_needs_is_refused(field: slice, value: bytes) -> None:
    with pytest.raises(ArchiveError):
        list(packed(damaged(field, value)).members())


def test_a_negative_size_never_reads_without_a_bound() -> None:
    class Counting(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert size >= 0
            return super().read(size)

    bomb = damaged(slice(124, 136), b"-0000000001\0") + bytes(10_000)

    with pytest.raises(ArchiveError):
        list(Reader(Counting(bomb)).members())


@pytest.mark.parametrize(
    "records",
    [
        b"9" * 5000 + b" path=a\n",
        b"0 path=a\n",
        b"-5 path=a\n",
        b"900 path=a\n",
        b"9 path=abc",
        b"path=a\n",
        b"11 size=-1\n",
        b"30 size=99999999999999999999\n\n",
    ],
)
def test_a_damaged_extended_header_is_refused(records: bytes) -> None:
    with pytest.raises(ArchiveError):
        list(packed(pax(records, header(Member(name=b"a", kind=Kind.FILE)))).members())


def test_very_many_records_are_read_once() -> None:
    archive = pax(b"5 a=\n" * 13_000, header(Member(name=b"a", kind=Kind.FILE)))

    assert [member.name for member in packed(archive).members()] == [b"a"]


def test_an_extended_header_has_a_limit() -> None:
    block = bytearray(header(Member(name=b"pax", kind=Kind.FILE, size=2**30)))
    block[156:157] = b"x"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)

    with pytest.raises(ArchiveError, match="64 KiB"):
        list(packed(bytes(block)).members())


def test_a_name_has_a_limit() -> None:
    with pytest.raises(ArchiveError, match="4096"):
        list(packed(header(Member(name=b"a" * 5000, kind=Kind.FILE))).members())


def test_a_file_of_many_gigabytes_has_its_size_in_a_record() -> None:
    size = 9 * 1024**3
    stream = io.BytesIO(header(Member(name=b"big", kind=Kind.FILE, size=size)))

    assert next(Reader(stream).members()).size == size


@given(st.binary(max_size=2048))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    reader, read = Reader(io.BytesIO(data)), 0
    try:
        for _ in reader.members():
            read += len(contents(reader))
    except ArchiveError:
        pass
    assert read <= len(data)
