"""A context, described: what is at each name, and the digests of its content, in pages.

A tree is a sequence of entries, folders before what is in them and names sorted by their bytes
below each folder. It travels as pages, each a few hundred entries; a page ends where a name says
so, and not after a number of entries, so one more file changes one page and not all that follow.

The tree's digest is over names, kinds, modes, link targets and contents. Times are kept, but apart:
what differs in times only is the same tree.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from zlib import crc32

from pierhead.protocol.archive import ArchiveError, Kind, Member
from pierhead.protocol.context import safe_parts
from pierhead.protocol.digest import Digest

CHUNK_BYTES: Final = 4 * 1024 * 1024  # a file is described by the digests of its pieces
DIGEST_BYTES: Final = 32
PAGE_ENTRIES_MAX: Final = 1024
PAGE_BYTES_MAX: Final = 1024 * 1024
# What our own packer does: half of the pages are shorter than 90 entries, and none grows large.
_ENDS: Final = 127  # one name in 128 ends a page
_PAGE_BYTES: Final = 256 * 1024
_PAGE_CONTENT_BYTES: Final = 16 * 1024 * 1024

_HEAD: Final = struct.Struct(">cBHQ")  # kind, executable, bytes of the name, size
_PAGE: Final = struct.Struct(">4sII")  # magic, entries, bytes of all entries
_MAGIC: Final = b"pht1"
_TREE: Final = b"pierhead tree 1\n"
MTIME_MAX: Final = 8**11 - 1  # what a tar can say


class Entry(NamedTuple):
    """What is at one name."""

    name: bytes
    kind: Kind
    executable: bool = False
    size: int = 0  # of a file's content, in bytes
    mtime: int = 0  # seconds since the epoch
    target: bytes = b""  # of a link
    digests: bytes = b""  # of a file's chunks, one after the other

    def member(self) -> Member:
        """Return it as a tar has it."""
        mode = 0o777 if self.kind is Kind.LINK else 0o755 if self.executable else 0o644
        name = self.name + b"/" if self.kind is Kind.FOLDER else self.name
        return Member(
            name=name,
            kind=self.kind,
            mode=mode,
            size=self.size,
            mtime=self.mtime,
            target=self.target,
        )

    def chunks(self) -> Iterator[tuple[bytes, int]]:
        """Yield the digest and the size of each chunk of a file."""
        for number in range(len(self.digests) // DIGEST_BYTES):
            digest = self.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
            yield digest, min(CHUNK_BYTES, self.size - number * CHUNK_BYTES)


def order(name: bytes) -> bytes:
    """Return what names are sorted by: what is in a folder comes right after it."""
    return name.replace(b"/", b"\0")


def chunk_count(size: int) -> int:
    """Return how many chunks a file of a size has."""
    return -(-size // CHUNK_BYTES)


def describe(kind: Kind, name: bytes, executable: bool, size: int, rest: bytes) -> bytes:
    """Return what the tree's digest is over, for one entry.

    `size` and `rest` are a file's size and digests, or a link target's length and bytes.
    """
    return _HEAD.pack(kind.value, executable, len(name), size) + name + rest


def described(entry: Entry) -> bytes:
    """Return what the tree's digest is over, for one entry."""
    size, rest = entry.size, entry.digests
    if entry.kind is Kind.LINK:
        size, rest = len(entry.target), entry.target
    return describe(entry.kind, entry.name, entry.executable, size, rest)


class TreeDigest:
    """The digest of a tree whose entries come one after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(_TREE)

    def add(self, descriptions: bytes) -> None:
        """Add what `describe` gave, of one entry or of many."""
        self._hash.update(descriptions)

    def digest(self) -> Digest:
        """Return the digest so far."""
        return Digest("sha256:" + self._hash.hexdigest())


class Pages:
    """Puts the entries of a tree into pages."""

    def __init__(self) -> None:
        self.pages: list[bytes] = []
        self.tree = TreeDigest()
        self._entries: list[bytes] = []
        self._times: list[int] = []
        self._bytes = 0
        self._content = 0

    def add(self, name: bytes, description: bytes, mtime: int, content_bytes: int) -> None:
        """Add the next entry."""
        entries = self._entries
        entries.append(description)
        self._times.append(mtime if 0 <= mtime <= MTIME_MAX else 0)
        self._bytes += len(description)
        self._content += content_bytes
        if (
            not crc32(name) & _ENDS
            or self._bytes >= _PAGE_BYTES
            or self._content >= _PAGE_CONTENT_BYTES
            or len(entries) == PAGE_ENTRIES_MAX
        ):
            self.end_page()

    def add_file(
        self, name: bytes, executable: bool, size: int, mtime: int, digests: bytes
    ) -> None:
        """Add a file: trees are files for the most part, so this saves what `describe` looks up."""
        description = _HEAD.pack(b"0", executable, len(name), size) + name + digests
        self.add(name, description, mtime, size)

    def end_page(self) -> None:
        """End the page that is under way, if there is one."""
        if not self._entries:
            return
        body = b"".join(self._entries)
        self.tree.add(body)
        count = len(self._entries)
        times = struct.pack(f">{count}Q", *self._times)
        self.pages.append(_PAGE.pack(_MAGIC, count, len(body)) + body + times)
        self._entries, self._times, self._bytes, self._content = [], [], 0, 0


def pages_of(entries: Iterable[Entry]) -> Pages:
    """Return the pages of entries that are in order already."""
    pages = Pages()
    for entry in entries:
        pages.add(entry.name, described(entry), entry.mtime, entry.size)
    pages.end_page()
    return pages


def descriptions(page: bytes) -> bytes:
    """Return what the tree's digest is over, of a page that was parsed before."""
    _, _, size = _PAGE.unpack_from(page)
    return page[_PAGE.size : _PAGE.size + size]


def parse_page(page: bytes) -> list[Entry]:
    """Return the entries of a page, which may come from anybody.

    Raises:
        ArchiveError: it is none, or names what has no place in a context.
    """
    try:
        return [*_entries(page)]
    except (struct.error, ValueError) as error:
        raise ArchiveError("the description of the context is damaged") from error


def _entries(page: bytes) -> Iterator[Entry]:
    magic, count, size = _PAGE.unpack_from(page)
    end = _PAGE.size + size
    wanted = len(page) == end + 8 * count and magic == _MAGIC
    if not wanted or count > PAGE_ENTRIES_MAX or len(page) > PAGE_BYTES_MAX:
        raise ValueError("not a page")
    times = struct.unpack_from(f">{count}Q", page, end)
    at, before = _PAGE.size, b""
    for mtime in times:
        flag, executable, length, size = _HEAD.unpack_from(page, at)
        kind = Kind(flag)
        at += _HEAD.size
        name = page[at : at + length]
        at += length
        taken = DIGEST_BYTES * chunk_count(size) if kind is Kind.FILE else size
        rest = page[at : at + taken]
        at += taken
        key = order(name)
        if executable > 1 or at > end or len(rest) != taken or key <= before:
            raise ValueError("not in order, or beyond the end")
        before = key
        yield _checked(name, kind, bool(executable), size, min(mtime, MTIME_MAX), rest)
    if at != end:
        raise ValueError("more than its entries")


def _checked(
    name: bytes, kind: Kind, executable: bool, size: int, mtime: int, rest: bytes
) -> Entry:
    if kind is Kind.FILE:
        entry = Entry(name, kind, executable, size, mtime, digests=rest)
    elif kind is Kind.LINK and 0 < size <= 4096 and b"\0" not in rest:
        entry = Entry(name, kind, executable, mtime=mtime, target=rest)
    elif kind is Kind.FOLDER and not rest:
        entry = Entry(name, kind, executable, mtime=mtime)
    else:
        raise ValueError("neither a file, a folder nor a link")
    if b"/".join(safe_parts(entry.member())) != name or not name:
        raise ArchiveError(f"the name {name[:200]!r} is not written plainly")
    return entry
