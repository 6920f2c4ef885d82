"""Describes a folder as the tree that a build starts from, and reads what is asked for of it.

The folder is walked once, by descriptors, so a folder that is replaced by a link meanwhile leads
nowhere. Owners are left out and modes made plain, so the same tree is the same wherever it was
checked out. What did not change since the last time is not read again.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, field

from pierhead.protocol.archive import ArchiveError, Kind, Member
from pierhead.protocol.client.known import Known
from pierhead.protocol.client.leftout import LeftOut, biggest, measured
from pierhead.protocol.context import DEPTH_MAX, safe_parts
from pierhead.protocol.digest import Digest
from pierhead.protocol.errors import Invalid
from pierhead.protocol.ignore import Ignore, ignore_files, kept_by_builders, parse_ignore
from pierhead.protocol.plan import CONTEXT_BYTES_MAX, CONTEXT_FILES_MAX
from pierhead.protocol.problem import problem
from pierhead.protocol.tree import CHUNK_BYTES, Pages, describe

_LEFT_OUT_MAX: Final = 1000
_NAMES: Final = ("utf-8", "surrogateescape")
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Extra: TypeAlias = "dict[bytes, bytes | Extra]"


class Source(Struct, frozen=True, gc=False):
    """Where the content of a chunk is. There are many, so the collector need not look at them."""

    name: bytes  # of the file
    offset: int
    size: int


class FolderContent(Struct, frozen=True):
    """Reads chunks of files in a folder, and of those that come on top of it."""

    root: Path
    extra: Mapping[bytes, bytes]

    def __call__(self, source: Source) -> bytes:
        """Return a chunk as it is now.

        Raises:
            Invalid: its file is gone, or cannot be read.
        """
        if source.name in self.extra:
            return self.extra[source.name][source.offset : source.offset + source.size]
        try:
            descriptor = os.open(os.path.join(os.fsencode(self.root), source.name), _OPEN)
            try:
                return os.pread(descriptor, source.size, source.offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unreadable(source.name, error) from error


class Packed(Struct):
    """A context, described."""

    digest: Digest  # of the tree
    pages: list[bytes]
    files: int
    size_bytes: int  # of all files
    sources: dict[bytes, Source]  # by the digest of a chunk
    content: Callable[[Source], bytes]
    left_out: list[LeftOut] = field(default_factory=list)  # the topmost of each, largest first
    warnings: list[str] = field(default_factory=list)

    def described(self) -> list[tuple[bytes, bytes]]:
        """Return the digest and the bytes of each page, in order."""
        return [(hashlib.sha256(page).digest(), page) for page in self.pages]

    def read(self, digest: bytes) -> bytes:
        """Return a chunk.

        Raises:
            Invalid: its file was changed since it was described.
        """
        source = self.sources[digest]
        data = self.content(source)
        if hashlib.sha256(data).digest() != digest:
            raise _changed(source.name)
        return data


def pack(
    root: Path,
    *,
    dockerfile: str = "Dockerfile",
    extra_files: Mapping[str, bytes] | None = None,
    known: Known | None = None,
    limit_bytes: int = CONTEXT_BYTES_MAX,
) -> Packed:
    """Describe a folder, without what its ignore file leaves out.

    `extra_files` are in the context as if they were in the folder, instead of a file of that name.
    `known` is what was seen of the folder the last time, and is brought up to date.

    Raises:
        Invalid: it is no folder, too large, or was changed meanwhile.
    """
    extra = dict(extra_files or {})
    ignore = read_ignore(root, dockerfile, extra)
    nested = _nested(extra)
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        detail = f"{root} is not a folder"
        raise Invalid(problem("invalid-document", detail, hint="pierhead build FOLDER")) from error
    walk = _Walk(ignore, dockerfile, known, limit_bytes)
    walk.tree(descriptor, nested)
    walk.pages.end_page()
    if walk.too_large:
        raise walk.refusal()
    return Packed(
        digest=walk.pages.tree.digest(),
        pages=walk.pages.pages,
        files=walk.files,
        size_bytes=walk.size,
        sources=walk.sources,
        content=FolderContent(root, {os.fsencode(name): data for name, data in extra.items()}),
        left_out=measured(os.fsencode(root), walk.left_out),
        warnings=walk.warnings,
    )


class _Level(Struct):
    """A folder that is being described."""

    descriptor: int | None  # none: it only has extra files
    below: bytes  # its name with a slash; the root has none
    above: tuple[bool, ...]  # which patterns fit it
    entries: "dict[bytes, os.DirEntry[str]]"
    extra: Extra
    rest: Iterator[bytes]  # the names in it that are still to come, in order
    before: int  # the size of all that was described before it


class _Walk:
    """Walks a folder once."""

    def __init__(
        self, ignore: Ignore, dockerfile: str, known: Known | None, limit_bytes: int
    ) -> None:
        self._ignore = ignore
        # The builder needs them, whatever the ignore file says.
        self._always = kept_by_builders(dockerfile)
        self._known = known
        self._limit_bytes = limit_bytes
        self._levels: list[_Level] = []  # from the root to where it is
        self._inodes: dict[tuple[int, int, int], bytes] = {}  # device, number and size
        self._sizes: list[tuple[int, bytes]] = []  # of folders and of large files
        self.pages = Pages()
        self.sources: dict[bytes, Source] = {}
        self.size = 0
        self.files = 0
        self.left_out: list[bytes] = []
        self.warnings: list[str] = []

    @property
    def too_large(self) -> bool:
        """Say whether it is more than may be sent. The rest is then measured and not read."""
        return self.size > self._limit_bytes or self.files > CONTEXT_FILES_MAX

    def refusal(self) -> Invalid:
        """Return the error that names what makes it large."""
        paths = ", ".join(f"{_shown(path)} ({n / 1e6:.0f} MB)" for n, path in biggest(self._sizes))
        detail = (
            f"the context is too large ({self.size / 1e6:.0f} MB in {self.files} files,"
            f" at most {self._limit_bytes / 1e6:.0f} MB): {paths}"
        )
        hint = "leave out what the build does not need with a line each in .dockerignore"
        return Invalid(problem("context-too-large", detail[:2000], hint=hint))

    def tree(self, descriptor: int, extra: Extra) -> None:
        """Describe a folder with all that is below it; the descriptor is closed at the end.

        Folders may be nested deeper than Python calls itself, hence the list.
        """
        self._levels.append(self._level(descriptor, b"", (), extra))
        try:
            while self._levels:
                level = self._levels[-1]
                inner = self._with_extra(level) if level.extra else self._plain(level)
                if inner is not None:
                    self._levels.append(inner)
                else:
                    self._sizes.append((self.size - level.before, level.below))
                    _close(self._levels.pop())
        finally:
            for level in self._levels:
                _close(level)

    def _level(
        self, descriptor: int | None, below: bytes, above: tuple[bool, ...], extra: Extra
    ) -> _Level:
        with os.scandir(descriptor) if descriptor is not None else _NO_ENTRIES as found:
            entries = {entry.name.encode("utf-8", "surrogateescape"): entry for entry in found}
        names = sorted({*entries, *extra}) if extra else sorted(entries)
        return _Level(descriptor, below, above, entries, extra, iter(names), self.size)

    def _plain(self, level: _Level) -> _Level | None:
        """Describe what is in a folder, up to the next folder in it, and return that.

        Every entry of every tree comes through here.
        """
        prefix, look, always = level.below.decode(*_NAMES), self._ignore.look, self._always
        for short in level.rest:
            entry = level.entries[short]
            if entry.is_dir(follow_symlinks=False):
                inner = self._below(level, entry, short, {})
                if inner is not None:
                    return inner
            elif look(prefix + entry.name, level.above)[0] and prefix + entry.name not in always:
                self._leave_out(level.below + short)
            else:
                self._other(level.descriptor, entry, level.below + short)
        return None

    def _with_extra(self, level: _Level) -> _Level | None:
        """Do the same where some files come on top of what is in the folder."""
        for short in level.rest:
            entry, added = level.entries.get(short), level.extra.get(short)
            if isinstance(added, bytes):
                self._extra(level.below + short, added)
            elif added is not None:
                inner = self._below(level, entry, short, added)
                if inner is not None:
                    return inner
            elif entry is not None:
                alone = msgspec.structs.replace(level, rest=iter((short,)))
                if (inner := self._plain(alone)) is not None:
                    return inner
        return None

    def _below(
        self, level: _Level, entry: "os.DirEntry[str] | None", short: bytes, extra: Extra
    ) -> _Level | None:
        """Describe a folder itself, and return it; none: nothing of it is wanted."""
        name = level.below + short
        path = os.fsdecode(name)
        out, fits = self._ignore.look(path, level.above)
        if out and not extra and not self._may_keep_below(path):
            self._leave_out(name)
            return None
        real = entry is not None and entry.is_dir(follow_symlinks=False)
        if not out or extra:
            mtime = int(entry.stat(follow_symlinks=False).st_mtime) if entry and real else 0
            self.pages.add(name, describe(Kind.FOLDER, name, True, 0, b""), mtime, 0)
        if len(self._levels) >= DEPTH_MAX:
            detail = f"folders are nested deeper than {DEPTH_MAX} at {_shown(name)[:200]}"
            raise Invalid(problem("invalid-document", detail, hint="leave it out: .dockerignore"))
        if not real or entry is None:
            return self._level(None, name + b"/", fits, extra)
        return self._enter(level, entry.name, name, fits, extra)

    def _enter(
        self, level: _Level, short: str, name: bytes, fits: tuple[bool, ...], extra: Extra
    ) -> _Level:
        try:
            inner = os.open(short, _OPEN_FOLDER, dir_fd=level.descriptor)
        except OSError as error:
            raise _unreadable(name, error) from error
        try:
            return self._level(inner, name + b"/", fits, extra)
        except OSError as error:
            os.close(inner)
            raise _unreadable(name, error) from error

    def _may_keep_below(self, path: str) -> bool:
        needed = any(always.startswith(path + "/") for always in self._always)
        return needed or self._ignore.may_keep_below(path)

    def _leave_out(self, name: bytes) -> None:
        if len(self.left_out) < _LEFT_OUT_MAX:
            self.left_out.append(name)

    def _extra(self, name: bytes, data: bytes) -> None:
        digest = b""
        for offset in range(0, len(data), CHUNK_BYTES):
            part = data[offset : offset + CHUNK_BYTES]
            digest += self._note(hashlib.sha256(part).digest(), name, offset, len(part))
        self.files += 1
        self.size += len(data)
        self.pages.add_file(name, False, len(data), 0, digest)

    def _other(self, descriptor: int | None, entry: "os.DirEntry[str]", name: bytes) -> None:
        """Describe what is not a folder."""
        try:
            if entry.is_file(follow_symlinks=False):
                self._regular(descriptor, entry, name)
            elif entry.is_symlink():
                self.files += 1
                status = entry.stat(follow_symlinks=False)
                target = os.readlink(os.fsencode(entry.name), dir_fd=descriptor)
                text = describe(Kind.LINK, name, False, len(target), target)
                self.pages.add(name, text, int(status.st_mtime), 0)
            else:
                self._leave_out_special(name)
        except OSError as error:
            raise _unreadable(name, error) from error

    def _regular(self, descriptor: int | None, entry: "os.DirEntry[str]", name: bytes) -> None:
        """Describe a file; what is known of it is not read."""
        if self._known is not None and name in self._known:
            status = entry.stat(follow_symlinks=False)
            digests = self._known.find(name, status)
            if digests is not None:
                self._note_known(digests, name, status.st_size)
                self._file(name, status, digests)
                return
        # Opened first and looked at then: it is this one that is read, and found only once.
        file = os.open(entry.name, _OPEN, dir_fd=descriptor)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                self._leave_out_special(name)
                return
            several = status.st_nlink > 1
            digests = (self._linked if several else self._content)(file, name, status)
        finally:
            os.close(file)
        if self._known is not None:
            self._known.note(name, status, digests)
        self._file(name, status, digests)

    def _leave_out_special(self, name: bytes) -> None:
        self.warnings.append(f"left out {_shown(name)}: not a file, a folder or a link")

    def _file(self, name: bytes, status: os.stat_result, digests: bytes) -> None:
        size = status.st_size
        if size > CHUNK_BYTES:
            self._sizes.append((size, name))
        self.files += 1
        self.size += size
        executable = status.st_mode & 0o111 != 0
        self.pages.add_file(name, executable, size, int(status.st_mtime), digests)

    def _linked(self, file: int, name: bytes, status: os.stat_result) -> bytes:
        """Return the digests of a file that has several names, and is read under one of them."""
        same = status.st_dev, status.st_ino, status.st_size
        if same not in self._inodes:
            self._inodes[same] = self._content(file, name, status)
        return self._inodes[same]

    def _content(self, file: int, name: bytes, status: os.stat_result) -> bytes:
        """Return the digests of a file's chunks."""
        size = status.st_size
        if self.size + size > self._limit_bytes:
            return b""
        data = os.read(file, size + 1) if size <= CHUNK_BYTES else b""
        if len(data) != size:  # large, or changed since it was looked at
            return self._read_chunks(file, name, size)
        return self._note(hashlib.sha256(data).digest(), name, 0, size) if data else b""

    def _read_chunks(self, file: int, name: bytes, size: int) -> bytes:
        digests = []
        for offset in range(0, size, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, size - offset)
            data = os.pread(file, wanted, offset)
            if len(data) != wanted:
                raise _changed(name, "became shorter while it was read")
            digests.append(self._note(hashlib.sha256(data).digest(), name, offset, wanted))
        if os.fstat(file).st_size > size:
            shown = _shown(name)
            self.warnings.append(f"{shown} grew while it was read: what came later is left out")
        return b"".join(digests)

    def _note(self, digest: bytes, name: bytes, offset: int, size: int) -> bytes:
        self.sources[digest] = Source(name, offset, size)
        return digest

    def _note_known(self, digests: bytes, name: bytes, size: int) -> None:
        if 0 < size <= CHUNK_BYTES:
            self.sources[digests] = Source(name, 0, size)
            return
        for number, at in enumerate(range(0, len(digests), 32)):
            offset = number * CHUNK_BYTES
            part = min(CHUNK_BYTES, size - offset)
            self.sources[digests[at : at + 32]] = Source(name, offset, part)


def _close(level: _Level) -> None:
    if level.descriptor is not None:
        os.close(level.descriptor)


class _NoEntries:
    """What a folder that does not exist has in it."""

    def __enter__(self) -> "Sequence[os.DirEntry[str]]":
        return ()

    def __exit__(self, *_: object) -> None:
        return None


_NO_ENTRIES: Final = _NoEntries()


def _nested(extra: Mapping[str, bytes]) -> Extra:
    """Return extra files by folder.

    Raises:
        Invalid: a name leaves the context, or is a file and a folder.
    """
    tree: Extra = {}
    for path, data in extra.items():
        try:
            *parents, last = safe_parts(Member(name=os.fsencode(path), kind=Kind.FILE)) or (b"",)
        except ArchiveError as error:
            raise Invalid(problem("invalid-document", f"an extra file: {error}")) from error
        folder: object = tree
        for part in parents:
            folder = folder.setdefault(part, {}) if isinstance(folder, dict) else None
        if not isinstance(folder, dict) or not last or last in folder:
            detail = f"{path!r} cannot be an extra file beside the others"
            raise Invalid(problem("invalid-document", detail))
        folder[last] = data
    return tree


def _changed(name: bytes, how: str = "was changed while it was packed") -> Invalid:
    hint = "let whatever writes it finish, or leave it out with a .dockerignore"
    return Invalid(problem("invalid-document", f"{_shown(name)} {how}", hint=hint))


def _unreadable(name: bytes, error: OSError) -> Invalid:
    if isinstance(error, FileNotFoundError):
        return _changed(name, "was removed while it was packed")
    hint = "make it readable, or leave it out with a .dockerignore"
    detail = f"{_shown(name)} cannot be read: {error.strerror}"
    return Invalid(problem("invalid-document", detail, hint=hint))


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def read_ignore(root: Path, dockerfile: str, extra: Mapping[str, bytes] | None = None) -> Ignore:
    """Return the patterns for a context: the Dockerfile's own ignore file wins.

    Raises:
        Invalid: a line of it is not a pattern.
    """
    for name in ignore_files(dockerfile):
        try:
            data = (extra or {}).get(name)
            text = (root / name).read_bytes() if data is None else data
        except (FileNotFoundError, NotADirectoryError):
            continue
        return ignore_from(name, text)
    return parse_ignore(())


def ignore_from(name: str, text: bytes) -> Ignore:
    """Return the patterns in an ignore file.

    Raises:
        Invalid: a line of it is not a pattern.
    """
    try:
        # Nothing else ends a line.
        return parse_ignore(text.decode("utf-8", "surrogateescape").split("\n"))
    except ValueError as error:
        hint = "write it as in .gitignore's simple cases, or remove the line"
        raise Invalid(problem("invalid-document", f"{name}: {error}", hint=hint)) from error
