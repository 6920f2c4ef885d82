"""Looks for a value everywhere it must not be: processes, files, layers, databases, documents.

It looks for the value as it is and in the forms in which programs write bytes, and into whatever
is compressed. What is mounted in memory is left out: there a secret may be while its step runs.
"""

import asyncio
import base64
import contextlib
import gzip
import os
import sqlite3
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import zstandard

SAMPLE_SECONDS = 0.02


def forms(value: bytes) -> list[bytes]:
    """Return what to look for."""
    shifted = [base64.b64encode(b"x" * before + value)[4:-4] for before in range(3)]
    return [value, value.hex().encode(), value.hex().upper().encode(), value[::-1], *shifted]


class Hunt:
    """One value that must not be found."""

    def __init__(self, value: bytes, *, besides: bytes = b"\0no process has this\0") -> None:
        self._forms = forms(value)
        self._besides = besides  # in the command line of a process that may have it
        self.found: set[str] = set()
        self.samples = 0  # of all processes of the machine

    def look(self, what: str, data: bytes) -> None:
        """Look into bytes, and into what they are when they are not packed."""
        for form in (data, *_unpacked(data)):
            if any(one in form for one in self._forms):
                self.found.add(what)

    def look_below(self, *folders: Path) -> None:
        """Look into every file on a disk below some folders, its name, and every database."""
        for folder in folders:
            for path in _files(folder):
                self.look(f"name of a file below {folder.name}", os.fsencode(path))
                with contextlib.suppress(FileNotFoundError):  # it was a temporary one
                    self.look(str(path), path.read_bytes())
                if path.suffix == ".db":
                    self._look_into_database(path)

    def _look_into_database(self, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (table,) in tables.fetchall():
                rows = database.execute(f'SELECT * FROM "{table}"')
                columns = [column[0] for column in rows.description]
                for row in rows:
                    for column, cell in zip(columns, row, strict=True):
                        data = cell if isinstance(cell, bytes) else str(cell).encode()
                        self.look(f"column {table}.{column}", data)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look at the command line and the environment of all processes, again and again."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.to_thread(self._sample)
            await asyncio.sleep(SAMPLE_SECONDS)

    def _sample(self) -> None:
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                self._look_at(process)
        self.samples += 1

    def _look_at(self, process: Path) -> None:
        """Read the command line twice: while a program starts it is empty, its environment not."""
        before = (process / "cmdline").read_bytes()
        environ = (process / "environ").read_bytes()
        commands = before, (process / "cmdline").read_bytes()
        for command in commands:
            self.look("cmdline of a process", command)
        if not any(self._besides in command for command in commands):
            self.look("environ of a process", environ)


def _files(folder: Path) -> Iterator[Path]:
    for place, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not os.path.ismount(Path(place, name))]
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink():
                yield path


def _unpacked(data: bytes) -> Iterator[bytes]:
    if data[:2] == b"\x1f\x8b":
        with contextlib.suppress(OSError, EOFError, zlib.error):
            yield gzip.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        with contextlib.suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data)
