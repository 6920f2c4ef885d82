"""From the context that an importer names to a folder that can be packed."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, assert_never

from pierhead.protocol.archive import ArchiveError, Kind, Member, Reader
from pierhead.protocol.context import link_parts, safe_parts
from pierhead.protocol.plan import CONTEXT_BYTES_MAX, CONTEXT_FILES_MAX
from pierhead.router.errors import RefusedError
from pierhead.router.request import Context, DirectoryContext, GitContext, TarContext

_PIECE: Final = 1024 * 1024
_HINT: Final = "send an uncompressed tar of files, folders and links"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder with the context, and files that come on top of it."""

    path: Path
    extra_files: Mapping[str, bytes] = field(default_factory=dict)


@asynccontextmanager
async def open_context(context: Context) -> AsyncIterator[Folder]:
    """Give the folder of a context; a tar is unpacked for as long as it is needed.

    Raises:
        RefusedError: it is of a kind that is not taken, or not a tar.
    """
    match context:
        case DirectoryContext(path=path, extra_files=extra_files):
            yield Folder(path=path, extra_files=extra_files)
        case TarContext():
            work = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="pierhead-"))
            try:
                yield Folder(path=await _unpacked(context, work))
            finally:
                await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        case GitContext():
            hint = "check it out, and use DirectoryContext(path=...)"
            raise RefusedError("a git repository is not taken as a context yet", hint=hint)
        case _:
            assert_never(context)


async def _unpacked(context: TarContext, work: Path) -> Path:
    size = 0
    with (work / "context.tar").open("wb") as file:
        async for data in context.open():
            size += len(data)
            if size > CONTEXT_BYTES_MAX:
                detail = f"the context is larger than {CONTEXT_BYTES_MAX // 2**30} GiB"
                raise RefusedError(detail, hint="leave out what the build does not read")
            await asyncio.to_thread(file.write, data)
    root = work / "context"
    try:
        await asyncio.to_thread(_unpack, work / "context.tar", root)
    except (ArchiveError, OSError) as error:
        raise RefusedError(f"the context is not such a tar: {error}", hint=_HINT) from error
    return root


def _unpack(archive: Path, root: Path) -> None:
    """Unpack a tar below a new folder. Links are made last, so nothing is written through one."""
    root.mkdir()
    links: dict[Path, bytes] = {}
    with archive.open("rb") as file:
        reader = Reader(file)
        for number, member in enumerate(reader.members()):
            if number > CONTEXT_FILES_MAX:
                raise ArchiveError(f"it has more than {CONTEXT_FILES_MAX} entries")
            parts = safe_parts(member)
            if parts:
                target = root.joinpath(*map(os.fsdecode, parts))
                _make(reader, member, root, target, links)
    for target, where in links.items():
        if not links.keys().isdisjoint(target.parents):
            raise ArchiveError(f"{target.name} would be made through a link")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        os.symlink(where, target)


def _make(
    reader: Reader, member: Member, root: Path, target: Path, links: dict[Path, bytes]
) -> None:
    """Make one entry. A later one of the same name is the one that counts, as in any tar."""
    links.pop(target, None)
    if member.kind is Kind.FOLDER:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.kind is Kind.LINK:
        links[target] = member.target
        return
    target.unlink(missing_ok=True)
    if member.kind is Kind.HARD_LINK:
        os.link(root.joinpath(*map(os.fsdecode, link_parts(member))), target)
        return
    with target.open("xb") as file:
        _copy(reader, member.size, file)
    target.chmod(0o755 if member.mode & 0o111 else 0o644)
    os.utime(target, (member.mtime, member.mtime))


def _copy(reader: Reader, size: int, file: BinaryIO) -> None:
    while size:
        data = reader.read(min(size, _PIECE))
        if not data:
            raise ArchiveError("it ends in the middle of a file")
        size -= len(data)
        file.write(data)
