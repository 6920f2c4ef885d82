"""The writer: one operation's failure is its own, and nothing stops it before it is closed."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from pierhead.protocol.errors import Unavailable
from pierhead.server.sql import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = Database(tmp_path / "test.db")
    await opened.write(lambda sql: sql.exec_driver_sql("CREATE TABLE t (n INTEGER)").close())
    yield opened
    await opened.close()


def add(number: int) -> "sa.TextClause":
    return sa.text(f"INSERT INTO t VALUES ({number})")


def rows(sql: sa.Connection) -> list[int]:
    return list(sql.execute(sa.text("SELECT n FROM t ORDER BY n")).scalars())


async def test_an_operation_that_fails_undoes_itself_and_no_other(database: Database) -> None:
    def fails(sql: sa.Connection) -> None:
        sql.execute(add(99))
        raise LookupError("mine")

    outcomes = await asyncio.gather(
        database.write(lambda sql: sql.execute(add(1)).close()),
        database.write(fails),
        database.write(lambda sql: sql.execute(add(2)).close()),
        return_exceptions=True,
    )

    assert isinstance(outcomes[1], LookupError)
    assert await database.read(rows) == [1, 2]


async def test_a_caller_that_gave_up_does_not_end_the_writer(database: Database) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(sql: sa.Connection) -> None:
        running.set()
        assert go_on.wait(25)
        sql.execute(add(1))

    caller = asyncio.create_task(database.write(slow))
    await asyncio.to_thread(running.wait, 25)
    waiting = asyncio.create_task(database.write(lambda sql: sql.execute(add(2)).close()))
    await asyncio.sleep(0)
    caller.cancel()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller
    go_on.set()

    async with asyncio.timeout(25):
        await database.write(lambda sql: sql.execute(add(3)).close())
    # The one that ran is stored, the one that was never begun is not.
    assert await database.read(rows) == [1, 3]


async def test_close_finishes_what_waits(tmp_path: Path) -> None:
    database = Database(tmp_path / "test.db")
    await database.write(lambda sql: sql.exec_driver_sql("CREATE TABLE t (n INTEGER)").close())
    writes = [
        asyncio.create_task(database.write(lambda sql, n=n: sql.execute(add(n)).close()))  # type: ignore[misc]
        for n in range(300)
    ]
    await asyncio.sleep(0)

    await database.close()

    async with asyncio.timeout(25):
        await asyncio.gather(*writes)
    again = Database(tmp_path / "test.db")
    assert await again.read(rows) == list(range(300))
    await again.close()


async def test_what_comes_in_while_others_run_shares_their_commit(database: Database) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(sql: sa.Connection) -> sa.RootTransaction | None:
        running.set()
        assert go_on.wait(25)
        return sql.get_transaction()

    first = asyncio.create_task(database.write(slow))
    await asyncio.to_thread(running.wait, 25)
    second = asyncio.create_task(database.write(lambda sql: sql.get_transaction()))
    await asyncio.sleep(0)
    go_on.set()

    assert await first is await second is not None


async def test_a_full_disk_undoes_what_shares_the_commit_and_is_told_to_all_of_it(
    database: Database,
) -> None:
    await database.write(lambda sql: sql.exec_driver_sql("PRAGMA max_page_count=20").close())
    blocked, go_on = threading.Event(), threading.Event()

    def hold(sql: sa.Connection) -> None:
        blocked.set()
        assert go_on.wait(25)

    def fill(sql: sa.Connection) -> None:
        sql.exec_driver_sql("INSERT INTO t VALUES (zeroblob(1000000))")

    holder = asyncio.create_task(database.write(hold))
    await asyncio.to_thread(blocked.wait, 25)
    group = [
        asyncio.create_task(database.write(one))
        for one in (
            lambda sql: sql.execute(add(1)).close(),
            fill,
            lambda sql: sql.execute(add(2)).close(),
        )
    ]
    await asyncio.sleep(0)
    go_on.set()

    outcomes = await asyncio.gather(holder, *group, return_exceptions=True)

    slugs = [getattr(getattr(one, "problem", None), "slug", one) for one in outcomes]
    assert slugs == ["storage-full", "storage-full", "storage-full", None]
    assert await database.read(rows) == [2], "whoever came after it has a transaction of its own"
    await database.write(lambda sql: sql.execute(add(3)).close())
    assert await database.read(rows) == [2, 3]


TABLES = sa.MetaData()
sa.Table("ours", TABLES, sa.Column("n", sa.Integer, primary_key=True))


def made(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


async def test_a_database_is_made_and_opened_again(tmp_path: Path) -> None:
    for expected in ([], [7]):
        database = await Database.open(tmp_path / "db", TABLES, 3)
        found = await database.read(
            lambda sql: list(sql.execute(sa.select(TABLES.tables["ours"].c.n)).scalars())
        )
        assert found == expected
        await database.write(
            lambda sql: sql.execute(sa.text("INSERT OR IGNORE INTO ours VALUES (7)")).close()
        )
        await database.close()


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (lambda path: path.write_bytes(b"no database" * 500), "is not a database"),
        (lambda path: made(path, "CREATE TABLE theirs (n)"), "is a database of something else"),
        (
            lambda path: made(path, "CREATE TABLE theirs (n)", "PRAGMA user_version=1"),
            "is a database of something else",
        ),
        (
            lambda path: made(path, "CREATE TABLE ours (n)", "PRAGMA user_version=4"),
            "is of a newer release: it has version 4, this one knows 3",
        ),
    ],
)
async def test_what_is_not_ours_is_refused_and_left_as_it_was(
    tmp_path: Path, fill: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "a {} db"
    fill(path)
    before = path.read_bytes()
    with pytest.raises(Unavailable) as refused:
        await Database.open(path, TABLES, 3)
    assert refused.value.problem.detail.startswith(f"{path} {said}")
    assert path.read_bytes() == before
    assert not any(thread.name == "sql-write" for thread in threading.enumerate())


async def test_a_folder_in_the_place_of_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        await Database.open(tmp_path, TABLES, 3)


async def test_a_database_that_somebody_else_writes_to_for_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="is in use by another program"):
            await Database.open(path, TABLES, 3)
