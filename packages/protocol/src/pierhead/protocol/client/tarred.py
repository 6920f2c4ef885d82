"""Describes a tar as the tree that a build starts from: for whoever has no folder, but a tar.

A tar may name things in any order, twice, and below folders that it does not name. The last one of
a name counts, as for whoever unpacks it. Its ignore file is applied as a folder's would be.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from pierhead.protocol.archive import ArchiveError, Kind, Member, Reader
from pierhead.protocol.client.pack import Packed, Source, ignore_from
from pierhead.protocol.context import link_parts, safe_parts
from pierhead.protocol.errors import Invalid
from pierhead.protocol.ignore import Ignore, ignore_files, kept_by_builders, parse_ignore
from pierhead.protocol.plan import CONTEXT_BYTES_MAX, CONTEXT_FILES_MAX
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import CHUNK_BYTES, Entry, order, pages_of

# So many patterns times so many names are looked at: a tar, and the ignore file in it, may be
# anybody's, who does not pay for the time.
LOOKS_MAX: Final = 50_000_000
# Of all files and folders. A name of 1000 bytes may be below 500 folders that nobody named.
NAMES_BYTES_MAX: Final = 256 * 1024 * 1024


def pack_tar(file: BinaryIO, *, dockerfile: str = "Dockerfile") -> Packed:
    """Describe a plain tar, which has to stay open and as it is while content is read of it.

    Raises:
        Invalid: it is no tar, too large, or has what has no place in a context.
    """
    tar = _Tar(file)
    try:
        tar.read()
        ignore = _ignore(tar, dockerfile)
        _require_few(len(ignore.patterns), len(tar.entries))
        entries = [*_kept(tar.in_order(), ignore, dockerfile)]
    except ArchiveError as error:
        hint = "send a tar of files, folders and links: tar c . | ..."
        raise Invalid(problem("invalid-document", f"the context: {error}", hint=hint)) from error
    pages = pages_of(entries)
    return Packed(
        digest=pages.tree.digest(),
        pages=pages.pages,
        files=sum(entry.kind is not Kind.FOLDER for entry in entries),
        size_bytes=sum(entry.size for entry in entries),
        sources=tar.sources,
        content=tar.content,
    )


@dataclass(slots=True)
class _Tar:
    """What is in a tar, and where."""

    file: BinaryIO
    entries: dict[bytes, Entry] = field(default_factory=dict)
    sources: dict[bytes, Source] = field(default_factory=dict)
    _size: int = 0
    _names_bytes: int = 0

    def read(self) -> None:
        """Read all of it."""
        reader = Reader(self.file)
        for member in reader.members():
            parts = safe_parts(member)
            if parts:
                name = b"/".join(parts)
                self._add(name, self._entry(reader, member, name))
            if len(self.entries) > CONTEXT_FILES_MAX or self._size > CONTEXT_BYTES_MAX:
                raise _too_large(f"is larger than {CONTEXT_BYTES_MAX // 2**30} GiB")

    def _add(self, name: bytes, entry: Entry) -> None:
        self._names_bytes += len(name)
        if self._names_bytes > NAMES_BYTES_MAX:
            raise _too_large("has too many names, or too long ones")
        self.entries[name] = entry

    def content(self, source: Source) -> bytes:
        """Return a chunk."""
        self.file.seek(source.offset)
        return self.file.read(source.size)

    def in_order(self) -> Iterator[Entry]:
        """Yield all entries, and the folders that were not named.

        Raises:
            ArchiveError: something is below what is no folder.
        """
        for name in [*self.entries]:
            self._add_folders_above(name)
        for name in sorted(self.entries, key=order):
            yield self.entries[name]

    def _add_folders_above(self, name: bytes) -> None:
        """Add the folders that were not named, each once: above one that is there all others are.

        A name of a few hundred bytes may have hundreds of them.
        """
        while b"/" in name:
            name = name.rpartition(b"/")[0]
            above = self.entries.get(name)
            if above is not None and above.kind is not Kind.FOLDER:
                shown = name[:200].decode("utf-8", "replace")
                raise ArchiveError(f"something is below {shown!r}, which is no folder")
            if above is not None:
                return
            self._add(name, Entry(name, Kind.FOLDER, True))

    def _entry(self, reader: Reader, member: Member, name: bytes) -> Entry:
        executable = member.mode & 0o111 != 0
        match member.kind:
            case Kind.FOLDER:
                return Entry(name, member.kind, True, mtime=member.mtime)
            case Kind.LINK:
                if not member.target or b"\0" in member.target:
                    raise ArchiveError("a link leads nowhere")
                return Entry(name, member.kind, mtime=member.mtime, target=member.target)
            case Kind.HARD_LINK:
                same = self.entries.get(b"/".join(link_parts(member)))
                if same is None or same.kind is not Kind.FILE:
                    raise ArchiveError("a hard link is to what did not come before it")
                self._size += same.size
                return same._replace(name=name)
            case Kind.FILE:
                digests = b"".join(self._chunks(reader, member.size, name))
                return Entry(
                    name, member.kind, executable, member.size, member.mtime, digests=digests
                )

    def _chunks(self, reader: Reader, size: int, name: bytes) -> Iterator[bytes]:
        self._size += size
        for offset in range(0, size, CHUNK_BYTES):
            begin, wanted = self.file.tell(), min(CHUNK_BYTES, size - offset)
            data = b""
            while len(data) < wanted:
                data += reader.read(wanted - len(data))
            digest = hashlib.sha256(data).digest()
            self.sources[digest] = Source(name, begin, wanted)
            yield digest


def _too_large(why: str) -> Invalid:
    hint = "leave out what the build does not need"
    return Invalid(problem("context-too-large", f"the context {why}", hint=hint))


def _ignore(tar: _Tar, dockerfile: str) -> Ignore:
    """Return the patterns of a tar's own ignore file."""
    for name in ignore_files(dockerfile):
        entry = tar.entries.get(name.encode())
        if entry is not None and entry.kind is Kind.FILE and entry.size <= CHUNK_BYTES:
            data = b"".join(tar.content(tar.sources[digest]) for digest, _ in entry.chunks())
            return ignore_from(name, data)
    return parse_ignore(())


def _require_few(patterns: int, names: int) -> None:
    if patterns * names > LOOKS_MAX:
        detail = f"{patterns} patterns of its ignore file are too many for {names} names"
        hint = "leave out of the tar what they are to leave out"
        raise Invalid(problem("context-too-large", detail, hint=hint))


def _kept(entries: Iterable[Entry], ignore: Ignore, dockerfile: str) -> Iterator[Entry]:
    """Yield what the ignore file does not leave out; entries come folder before content."""
    always = kept_by_builders(dockerfile)
    fits: dict[bytes, tuple[bool, ...]] = {b"": ()}
    for entry in entries:
        path = entry.name.decode("utf-8", "surrogateescape")
        out, found = ignore.look(path, fits[entry.name.rpartition(b"/")[0]])
        if entry.kind is Kind.FOLDER:
            fits[entry.name] = found
        if not out or path in always:
            yield entry
