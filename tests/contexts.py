"""Contexts made of what a test says, without a folder."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from pierhead.protocol.archive import Kind
from pierhead.protocol.client.pack import FolderContent, Packed, Source
from pierhead.protocol.tree import CHUNK_BYTES, Entry, order, pages_of


def described(files: Mapping[str, bytes], *, executable: bool = True) -> Packed:
    """Return files as a client describes them; names may be such that no client has."""
    contents = {name: files[name.decode()] for name in sorted(map(str.encode, files), key=order)}
    sources: dict[bytes, Source] = {}
    entries = []
    for name, data in contents.items():
        digests = b""
        for at in range(0, len(data), CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            digest = sha256(chunk).digest()
            digests += digest
            sources[digest] = Source(name, at, len(chunk))
        entries.append(Entry(name, Kind.FILE, executable, len(data), digests=digests))
    pages = pages_of(entries)
    return Packed(
        digest=pages.tree.digest(),
        pages=pages.pages,
        files=len(entries),
        size_bytes=sum(map(len, contents.values())),
        sources=sources,
        content=FolderContent(Path("/nowhere"), contents),
    )
