"""Where the content of contexts is: a database of its own, so that uploads hold up nobody else.

An object is found by (project, digest): what one project has is not there for another, and no
question can be asked across projects.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from pierhead.router.ports.contexts import SealedPage
from pierhead.server.sql import Database

T = TypeVar("T")
_ASKED_AT_ONCE: Final = 500  # SQLite takes 999 values in any release
METADATA: Final = sa.MetaData()
SCHEMA_VERSION: Final = 1

_files = sa.Table(
    "content_files",
    METADATA,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("project", sa.String, nullable=False),
    sa.Column("size_bytes", sa.Integer, nullable=False),
    sa.Column("sealed", sa.Boolean, nullable=False),  # parts of archives, not bodies as they came
    sa.Column("created_at", sa.Float, nullable=False),
)
_objects = sa.Table(
    "content_objects",
    METADATA,
    sa.Column("project", sa.String, primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("file", sa.String, nullable=False, index=True),
    sa.Column("offset", sa.Integer, nullable=False),  # of the frame in the file
    sa.Column("length", sa.Integer, nullable=False),
    sa.Column("inner", sa.Integer, nullable=False),  # of the object in the frame
    sa.Column("size", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)
_pages = sa.Table(
    "content_pages",
    METADATA,
    sa.Column("project", sa.String, primary_key=True),
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("page", sa.LargeBinary, nullable=False),
    sa.Column("files", sa.Integer, nullable=False),
    sa.Column("size_bytes", sa.Integer, nullable=False),
    sa.Column("tar_bytes", sa.Integer, nullable=False),
    sa.Column("file", sa.String, nullable=False, index=True),
    sa.Column("offset", sa.Integer, nullable=False),
    sa.Column("length", sa.Integer, nullable=False),
)
_contexts = sa.Table(
    "content_contexts",
    METADATA,
    sa.Column("project", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("pages", sa.LargeBinary, nullable=False),
)


class Place(NamedTuple):
    """Where an object is."""

    file: str
    offset: int
    length: int
    inner: int
    size: int


class Segment(NamedTuple):
    """Where a page's part of archives is."""

    file: str
    offset: int
    length: int


class ContentIndex:
    """The index, on a SQLite file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, path: Path) -> "ContentIndex":
        """Open it, and make its tables when it is new.

        Raises:
            Unavailable: it cannot be used, or another release wrote it.
        """
        return cls(await Database.open(path, METADATA, SCHEMA_VERSION))

    async def close(self) -> None:
        """Finish what waits, then close."""
        await self._database.close()

    async def known(self, project: str, digests: Sequence[bytes]) -> set[bytes]:
        """Return which objects the project has."""
        return {*(await self.places(project, digests))}

    async def places(self, project: str, digests: Sequence[bytes]) -> dict[bytes, Place]:
        """Return where objects of the project are; those that it lacks are left out."""
        columns = (_objects.c.digest, *(_objects.c[name] for name in Place._fields))

        def operation(connection: sa.Connection) -> dict[bytes, Place]:
            rows = _each(connection, sa.select(*columns), _objects, project, digests)
            return {row[0]: Place._make(row[1:]) for row in rows}

        return await self._database.read(operation)

    async def waiting_bytes(self, project: str) -> int:
        """Return the size of all bodies of a project whose content is in no archive yet."""
        query = sa.select(sa.func.coalesce(sa.func.sum(_files.c.size_bytes), 0)).where(
            _files.c.project == project, ~_files.c.sealed
        )
        return await self._database.read(
            lambda connection: int(connection.execute(query).scalar_one())
        )

    async def add_body(
        self, project: str, file: str, size: int, objects: Mapping[bytes, Place], now: float
    ) -> int:
        """Add a file of objects; return how many of them the project did not have."""
        query = insert(_objects).on_conflict_do_nothing()

        def operation(connection: sa.Connection) -> int:
            _add_file(connection, project, file, size, sealed=False, now=now)
            before = _count(connection, file)
            connection.execute(query, _object_rows(project, objects))
            return _count(connection, file) - before

        return await self._database.write(operation)

    async def add_sealed(
        self,
        project: str,
        file: str,
        size: int,
        pages: Sequence[tuple[SealedPage, Segment]],
        objects: Mapping[bytes, Place],
        now: float,
    ) -> None:
        """Add a file of parts of archives; its objects are found there from now on."""
        fresh = insert(_objects)
        changed = {name: fresh.excluded[name] for name in Place._fields}
        moved = fresh.on_conflict_do_update(index_elements=["project", "digest"], set_=changed)
        rows = [
            {"project": project, **page._asdict(), **segment._asdict()} for page, segment in pages
        ]

        def operation(connection: sa.Connection) -> None:
            _add_file(connection, project, file, size, sealed=True, now=now)
            connection.execute(insert(_pages).on_conflict_do_nothing(), rows)
            if objects:
                connection.execute(moved, _object_rows(project, objects))
            described = [row["digest"] for row in rows]  # their descriptions are in the pages now
            for part in _parts(described):
                here = (_objects.c.project == project, _objects.c.digest.in_(part))
                connection.execute(sa.delete(_objects).where(*here))

        await self._database.write(operation)

    async def sealed(self, project: str, digests: Sequence[bytes]) -> dict[bytes, SealedPage]:
        """Return the pages whose part of archives is there."""
        columns = [_pages.c[name] for name in SealedPage._fields]

        def operation(connection: sa.Connection) -> dict[bytes, SealedPage]:
            rows = _each(connection, sa.select(*columns), _pages, project, digests)
            return {row[0]: SealedPage._make(row) for row in rows}

        return await self._database.read(operation)

    async def save_context(self, project: str, digest: str, pages: bytes) -> None:
        """Remember which pages a context has."""
        row = {"project": project, "digest": digest, "pages": pages}
        query = insert(_contexts).on_conflict_do_update(
            index_elements=["project", "digest"], set_={"pages": pages}
        )
        await self._database.write(lambda connection: connection.execute(query, row))

    async def segments(self, project: str, digest: str) -> list[Segment] | None:
        """Return the parts of a context's archive, in order; none: it is not there."""
        query = sa.select(_contexts.c.pages).where(
            _contexts.c.project == project, _contexts.c.digest == digest
        )
        columns = (_pages.c.digest, *(_pages.c[name] for name in Segment._fields))

        def operation(connection: sa.Connection) -> list[Segment] | None:
            pages = connection.execute(query).scalar()
            if pages is None:
                return None
            wanted = [pages[at : at + 32] for at in range(0, len(pages), 32)]
            rows = _each(connection, sa.select(*columns), _pages, project, wanted)
            found = {row[0]: Segment._make(row[1:]) for row in rows}
            complete = all(page in found for page in wanted)
            return [found[page] for page in wanted] if complete else None

        return await self._database.read(operation)

    async def forget_context(self, project: str, digest: str) -> None:
        """Forget a context; what only it needed goes with the next sweep."""
        here = (_contexts.c.project == project, _contexts.c.digest == digest)
        await self._database.write(
            lambda connection: connection.execute(sa.delete(_contexts).where(*here))
        )

    async def drop_unneeded(self, before: float, project: str | None = None) -> list[str]:
        """Forget files that nothing needs, and return them.

        A body is needed while an object is found in it; one from before a time is not. Parts of
        archives are needed while a context has them, or were made after that time.
        """

        def operation(connection: sa.Connection) -> list[str]:
            if project is None:
                _drop_pages(connection, before)
            needed = sa.exists().where(_objects.c.file == _files.c.id)
            kept = sa.exists().where(_pages.c.file == _files.c.id)
            old = _files.c.created_at < before
            body = sa.and_(~_files.c.sealed, sa.or_(~needed, old))
            part = sa.and_(_files.c.sealed, ~kept, old)
            query = sa.select(_files.c.id).where(sa.or_(body, part))
            if project is not None:
                query = query.where(_files.c.project == project)
            files = [*connection.execute(query).scalars()]
            for some in _parts(files):
                connection.execute(sa.delete(_objects).where(_objects.c.file.in_(some)))
                connection.execute(sa.delete(_files).where(_files.c.id.in_(some)))
            return files

        return await self._database.write(operation)

    async def drop_project(self, project: str) -> list[str]:
        """Forget all that a project has, and return its files."""
        query = sa.select(_files.c.id).where(_files.c.project == project)

        def operation(connection: sa.Connection) -> list[str]:
            files = [*connection.execute(query).scalars()]
            for table in METADATA.tables.values():
                connection.execute(sa.delete(table).where(table.c.project == project))
            return files

        return await self._database.write(operation)

    async def drop_file(self, file: str) -> None:
        """Forget a file and all that is found in it."""

        def operation(connection: sa.Connection) -> None:
            for table in (_objects, _pages):
                connection.execute(sa.delete(table).where(table.c.file == file))
            connection.execute(sa.delete(_files).where(_files.c.id == file))

        await self._database.write(operation)

    async def files(self) -> set[str]:
        """Return all files that there should be."""
        query = sa.select(_files.c.id)
        return await self._database.read(lambda connection: {*connection.execute(query).scalars()})


def _drop_pages(connection: sa.Connection, before: float) -> None:
    """Forget pages that no context has."""
    wanted: set[tuple[str, bytes]] = set()
    for project, pages in connection.execute(sa.select(_contexts.c.project, _contexts.c.pages)):
        wanted.update((project, pages[at : at + 32]) for at in range(0, len(pages), 32))
    old = sa.select(_files.c.id).where(_files.c.created_at < before)
    found = connection.execute(
        sa.select(_pages.c.project, _pages.c.digest).where(_pages.c.file.in_(old))
    ).all()
    for project, digest in found:
        if (project, digest) not in wanted:
            here = (_pages.c.project == project, _pages.c.digest == digest)
            connection.execute(sa.delete(_pages).where(*here))


def _add_file(
    connection: sa.Connection, project: str, file: str, size: int, *, sealed: bool, now: float
) -> None:
    row = {"id": file, "project": project, "size_bytes": size, "sealed": sealed}
    connection.execute(sa.insert(_files), {**row, "created_at": now})


def _object_rows(project: str, objects: Mapping[bytes, Place]) -> list[dict[str, object]]:
    return [
        {"project": project, "digest": digest, **place._asdict()}
        for digest, place in objects.items()
    ]


def _count(connection: sa.Connection, file: str) -> int:
    query = sa.select(sa.func.count()).select_from(_objects).where(_objects.c.file == file)
    return int(connection.execute(query).scalar_one())


def _each(
    connection: sa.Connection,
    query: sa.Select[Any],
    table: sa.Table,
    project: str,
    digests: Sequence[bytes],
) -> Iterator[sa.Row[Any]]:
    for part in _parts(digests):
        yield from connection.execute(
            query.where(table.c.project == project, table.c.digest.in_(part))
        )


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(values), _ASKED_AT_ONCE):
        yield values[at : at + _ASKED_AT_ONCE]
