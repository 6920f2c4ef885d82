"""Lays the layers of an image over each other, as a runtime would, and writes what is seen.

Two passes: from the top layer down it is decided which members are seen, then they are written from
the bottom up, so that a folder comes before what is in it and a file before the links to it.
"""

import contextlib
import copy
import gzip
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Final, cast

import zstandard

from pierhead.protocol.errors import Invalid
from pierhead.protocol.problem import problem

_GONE: Final = ".wh."  # image-spec, layer.md, "Whiteouts"
_OPAQUE: Final = ".wh..wh..opq"
_WRITTEN_ANEW: Final = frozenset({"path", "linkpath", "size"})


@dataclass(slots=True)
class _Above:
    """What the layers above say about paths."""

    seen: dict[str, bool] = field(default_factory=dict)  # path: it is a folder
    gone: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)

    def hides(self, path: str) -> bool:
        """Say whether a member of a lower layer cannot be seen."""
        if path in self.seen or path in self.gone:
            # Of a folder in several layers the topmost counts; what is below it may still be seen.
            return True
        return any(
            parent in self.gone or parent in self.opaque or self.seen.get(parent) is False
            for parent in _parents(path)
        )


def open_layer(blob: IO[bytes]) -> IO[bytes]:
    """Return a layer's tar, decompressed into a file that is gone when it is closed."""
    plain = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked for it closes it
    magic = blob.read(4)
    blob.seek(0)
    if magic == b"\x28\xb5\x2f\xfd":
        zstandard.ZstdDecompressor().copy_stream(blob, cast("IO[bytes]", plain))
    elif magic[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=blob) as unzipped:
            shutil.copyfileobj(unzipped, plain, 1024 * 1024)
    else:
        shutil.copyfileobj(blob, plain, 1024 * 1024)
    plain.seek(0)
    return plain


def flatten(layers: list[IO[bytes]], output: IO[bytes]) -> None:
    """Write what is seen of the layers, lowest first, as one tar."""
    with contextlib.ExitStack() as open_ones:
        archives = [
            open_ones.enter_context(tarfile.open(fileobj=layer, mode="r:")) for layer in layers
        ]
        flat = open_ones.enter_context(
            tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT)
        )
        chosen = list(_visible(archives))
        written: set[str] = set()
        for depth, (archive, members) in reversed(list(enumerate(chosen))):
            below = [other for other, _ in chosen[depth:]]
            for member in members:
                _write(flat, archive, member, written, below)


def _visible(
    archives: list[tarfile.TarFile],
) -> Iterator[tuple[tarfile.TarFile, list[tarfile.TarInfo]]]:
    """Yield each layer from the top, with those of its members that are seen."""
    above = _Above()
    for archive in reversed(archives):
        here = _Above()
        kept = {}
        for member in archive:
            path = _path(member)
            folder, _, base = path.rpartition("/")
            if base == _OPAQUE:
                here.opaque.add(folder)
            elif base.startswith(_GONE):
                here.gone.add(f"{folder}/{base[len(_GONE) :]}".lstrip("/"))
            elif path and not above.hides(path):
                here.seen[path] = member.isdir()
                kept[path] = member
        yield archive, list(kept.values())
        above.seen |= here.seen
        above.gone |= here.gone
        above.opaque |= here.opaque


def _write(
    flat: tarfile.TarFile,
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    written: set[str],
    below: list[tarfile.TarFile],
) -> None:
    out = copy.copy(member)
    out.name = _path(member)
    # What the records say of names and sizes is written anew.
    out.pax_headers = {k: v for k, v in member.pax_headers.items() if k not in _WRITTEN_ANEW}
    content = archive.extractfile(member) if member.isreg() else None
    if member.islnk() and _normal(member.linkname) not in written:
        # What it shares its content with is hidden by a layer above: it becomes the file itself.
        content, out.size = _content_of(member.linkname, below)
        out.type, out.linkname = tarfile.REGTYPE, ""
    flat.addfile(out, content)
    written.add(out.name)


def _content_of(name: str, archives: list[tarfile.TarFile]) -> tuple[IO[bytes], int]:
    """Return the content of a file in the topmost layer that has it."""
    for archive in archives:
        for member in archive:
            if _path(member) == _normal(name) and (content := archive.extractfile(member)):
                return content, member.size
    raise Invalid(problem("invalid-document", f"a layer links to {name}, which no layer has"))


def _path(member: tarfile.TarInfo) -> str:
    return _normal(member.name)


def _normal(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in {"", "."})


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(len(parts)))
