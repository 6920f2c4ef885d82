"""A description says all of a tree, and nothing that is not a description passes for one."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.archive import ArchiveError, Kind
from pierhead.protocol.tree import (
    CHUNK_BYTES,
    PAGE_ENTRIES_MAX,
    Entry,
    Pages,
    describe,
    descriptions,
    pages_of,
    parse_page,
)


def file(name: bytes, size: int = 1, **more: object) -> Entry:
    digests = b"d" * 32 * -(-size // CHUNK_BYTES)
    return Entry(name, Kind.FILE, size=size, digests=digests, **more)  # type: ignore[arg-type]


TREE = [
    Entry(b"a", Kind.FOLDER, executable=True, mtime=5),
    file(b"a/b", 3 * CHUNK_BYTES + 1, executable=True, mtime=2**33 - 1),
    Entry(b"a/c", Kind.LINK, target=b"../\xff"),
    file(b"a-", 0),
    file(b"b\n\xff"),
]


def test_entries_come_back_as_they_were() -> None:
    pages = pages_of(TREE).pages
    assert [entry for page in pages for entry in parse_page(page)] == TREE


def test_one_more_file_changes_few_pages_and_a_time_changes_one() -> None:
    names = [b"%06d" % number for number in range(0, 20_000, 2)]
    before = pages_of(map(file, names)).pages
    more = pages_of(map(file, sorted([*names, b"009999"]))).pages
    touched = pages_of(file(name, mtime=int(name == b"010000")) for name in names)

    assert len(before) > 50
    assert len({*more} - {*before}) <= 2
    assert len({*touched.pages} - {*before}) == 1
    assert touched.tree.digest() == pages_of(map(file, names)).tree.digest()


def test_the_digest_is_of_what_the_pages_describe_however_they_are_cut() -> None:
    pages = pages_of(TREE)
    whole = Pages()
    for page in pages.pages:
        whole.tree.add(descriptions(page))
    assert whole.tree.digest() == pages.tree.digest()


@pytest.mark.parametrize(
    "changed",
    [
        file(b"x"),
        file(b"b\n\xff", executable=True),
        file(b"b\n\xff", 2),
        Entry(b"b\n\xff", Kind.FOLDER),
        Entry(b"b\n\xff", Kind.LINK, target=b"x"),
    ],
)
def test_a_name_a_mode_a_size_or_a_kind_makes_another_tree(changed: Entry) -> None:
    assert pages_of([*TREE[:-1], changed]).tree.digest() != pages_of(TREE).tree.digest()


def page(*entries: Entry) -> bytes:
    pages = pages_of(entries)
    assert len(pages.pages) == 1
    return pages.pages[0]


def raw_page(description: bytes) -> bytes:
    pages = Pages()
    pages.add(b"a", description, 0, 0)
    pages.end_page()
    return pages.pages[0]


GOOD = page(file(b"a"), file(b"b"))
BAD = {
    "empty": b"",
    "not ours": b"x" * 100,
    "cut": GOOD[:-1],
    "longer": GOOD + b"x",
    "out of order": page(file(b"b"), file(b"a")),
    "twice": page(file(b"a"), file(b"a")),
    "absolute": page(file(b"/a")),
    "above": page(file(b"../a")),
    "not plain": page(file(b"a//b")),
    "a dot": page(file(b"./a")),
    "no name": page(file(b"")),
    "a NUL": page(file(b"a\0b")),
    "a long part": page(file(b"a" * 256)),
    "a hard link": page(Entry(b"a", Kind.HARD_LINK, target=b"b")),
    "a link to nothing": page(Entry(b"a", Kind.LINK)),
    "a NUL in a target": page(Entry(b"a", Kind.LINK, target=b"b\0")),
    "a folder with content": raw_page(describe(Kind.FOLDER, b"a", False, 3, b"abc")),
    "neither executable nor not": raw_page(b"5\2" + describe(Kind.FOLDER, b"a", False, 0, b"")[2:]),
    "too many entries": b"pht1" + struct.pack(">II", PAGE_ENTRIES_MAX + 1, 0),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_no_description_is_refused(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        parse_page(data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_description_is_refused_or_is_one(at: int, noise: bytes) -> None:
    damaged = GOOD[:at] + noise + GOOD[at + len(noise) :]
    try:
        entries = parse_page(damaged)
    except ArchiveError:
        return
    assert descriptions(page(*entries)) == descriptions(damaged)
