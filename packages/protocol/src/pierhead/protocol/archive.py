"""The tar of a context: ustar with PAX records where they are needed, written and read.

Reading takes what others write, too (GNU long names), and bounds everything before it is held in
memory. What a name may be is in `context`; nothing here touches a disk.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple, Protocol

BLOCK: Final = 512
NAME_BYTES_MAX: Final = 4096  # PATH_MAX
_EXTENSION_BYTES_MAX: Final = 64 * 1024
_MTIME_MAX: Final = 8**11 - 1
_NAME: Final = slice(0, 100)
_LINK: Final = slice(157, 257)


class Kind(Enum):
    """What a member is; the value is its ustar type flag."""

    FILE = b"0"
    HARD_LINK = b"1"
    LINK = b"2"
    FOLDER = b"5"


class ArchiveError(Exception):
    """The bytes are not a tar, or hold what has no place in a context."""


class Member(NamedTuple):
    """One entry. Names are bytes: no encoding is assumed."""

    name: bytes
    kind: Kind
    mode: int = 0o644
    size: int = 0
    mtime: int = 0  # seconds since the epoch
    target: bytes = b""  # of links


class ByteStream(Protocol):
    """Where bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""
        ...


def padding(size: int) -> int:
    """Return how many zero bytes follow `size` bytes of content."""
    return -size % BLOCK


def header(member: Member) -> bytes:
    """Return the header of a member: one block, after a PAX header when a value does not fit."""
    records = b""
    name, target = member.name, member.target
    if len(name) > 100:
        records += _record(b"path", name)
        name = name[:100]
    if len(target) > 100:
        records += _record(b"linkpath", target)
        target = target[:100]
    if member.size >= 8**11:
        records += _record(b"size", b"%d" % member.size)
    block = _block(
        name, member.kind.value, member.mode, min(member.size, 8**11 - 1), member, target
    )
    if not records:
        return block
    extension = _block(b"pax", b"x", 0o644, len(records), member, b"")
    return extension + records + bytes(padding(len(records))) + block


def _block(name: bytes, flag: bytes, mode: int, size: int, member: Member, target: bytes) -> bytes:
    mtime = min(max(member.mtime, 0), 8**11 - 1)
    fields = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        name.ljust(100, b"\0"),
        mode,
        0,
        0,
        size,
        mtime,
    )
    rest = flag + target.ljust(100, b"\0") + b"ustar\x0000" + bytes(32 + 32)
    tail = rest + b"0000000\x000000000\x00" + bytes(155 + 12)
    checksum = sum(fields) + 8 * 32 + sum(tail)
    return fields + b"%06o\0 " % checksum + tail


def _record(key: bytes, value: bytes) -> bytes:
    """Return one PAX record; its length counts itself (POSIX pax, "extended header")."""
    body = b" %b=%b\n" % (key, value)
    size = len(body)
    while len(b"%d" % size) + len(body) != size:
        size = len(b"%d" % size) + len(body)
    return b"%d" % size + body


END: Final = bytes(2 * BLOCK)


class Reader:
    """Reads members one after the other; the content of one is read before the next."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._left = 0  # of the current member's content
        self._pad = 0

    def members(self) -> Iterator[Member]:
        """Yield all members.

        Raises:
            ArchiveError: what comes is not a tar, or is cut.
        """
        extra: dict[bytes, bytes] = {}
        while True:
            self._skip_rest()
            block = self._exactly(BLOCK)
            if block == bytes(BLOCK):
                return
            flag, size = _checked(block), _number(block[124:136])
            if flag in b"xgLK":
                extra |= self._extension(flag, size)
                continue
            size = _decimal(extra.get(b"size"), size)
            yield self._member(block, flag, size, extra)
            extra = {}

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes of the current member's content; none at its end."""
        data = self._stream.read(min(size, self._left)) if self._left else b""
        if self._left and not data:
            raise ArchiveError("the archive is cut")
        self._left -= len(data)
        return data

    def _member(self, block: bytes, flag: bytes, size: int, extra: dict[bytes, bytes]) -> Member:
        name = extra.get(b"path", _joined(block))
        target = extra.get(b"linkpath", block[_LINK].partition(b"\0")[0])
        if flag in b"\x007":
            flag = b"0"
        try:
            kind = Kind(flag)
        except ValueError as error:
            shown = name[:200].decode("utf-8", "replace")
            raise ArchiveError(f"{shown} is a device, a pipe or unknown") from error
        if max(len(name), len(target)) > NAME_BYTES_MAX:
            raise ArchiveError("a name is longer than 4096 bytes")
        self._left = size if kind is Kind.FILE else 0
        self._pad = padding(self._left)
        mode, mtime = _number(block[100:108]) & 0o7777, _number(block[136:148])
        if mtime > _MTIME_MAX:
            raise ArchiveError("a time in the archive is beyond all times")
        return Member(name=name, kind=kind, mode=mode, size=self._left, mtime=mtime, target=target)

    def _extension(self, flag: bytes, size: int) -> dict[bytes, bytes]:
        if size > _EXTENSION_BYTES_MAX:
            raise ArchiveError("an extended header is over 64 KiB")
        data = self._exactly(size)
        self._exactly(padding(size))
        if flag == b"L":
            return {b"path": data.rstrip(b"\0")}
        if flag == b"K":
            return {b"linkpath": data.rstrip(b"\0")}
        return dict(_records(data)) if flag == b"x" else {}

    def _skip_rest(self) -> None:
        while self._left:
            self.read(1024 * 1024)
        self._exactly(self._pad)
        self._pad = 0

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._stream.read(size)
            if not part:
                raise ArchiveError("the archive is cut")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _checked(block: bytes) -> bytes:
    """Return the type flag of a block whose checksum is right."""
    found = sum(block[:148]) + 8 * 32 + sum(block[156:])
    if found != _number(block[148:156]):
        raise ArchiveError("a header of the archive is damaged")
    return block[156:157]


def _number(field: bytes) -> int:
    """Return an octal field, or GNU's binary form of one."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.partition(b"\0")[0].strip()
    if text.strip(b"01234567"):
        # int() would also take a sign: a size below 0 reads without a bound.
        raise ArchiveError("a header of the archive is damaged")
    return int(text, 8) if text else 0


def _decimal(text: bytes | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    if not text.isdigit() or len(text) > 18:
        raise ArchiveError("a size in the archive is not a number")
    return int(text)


def _joined(block: bytes) -> bytes:
    name = block[_NAME].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0]
    ustar = block[257:263] == b"ustar\0"
    return prefix + b"/" + name if prefix and ustar else name


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(data):
        length, _, _ = data[at : at + 8].partition(b" ")
        size = int(length) if length.isdigit() else 0
        record = data[at : at + size]
        at += size
        if size != len(record) or size <= len(length) + 1 or not record.endswith(b"\n"):
            raise ArchiveError("an extended header of the archive is damaged")
        # Exactly one line break ends a record: a name may end with one of its own.
        key, _, value = record[len(length) + 1 : -1].partition(b"=")
        yield key, value
