"""The writer: one operation's failure is its own, and nothing stops it before it is closed."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

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
        assert go_on.wait(10)
        sql.execute(add(1))

    caller = asyncio.create_task(database.write(slow))
    await asyncio.to_thread(running.wait, 10)
    waiting = asyncio.create_task(database.write(lambda sql: sql.execute(add(2)).close()))
    await asyncio.sleep(0)
    caller.cancel()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller
    go_on.set()

    async with asyncio.timeout(10):
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

    async with asyncio.timeout(10):
        await asyncio.gather(*writes)
    again = Database(tmp_path / "test.db")
    assert await again.read(rows) == list(range(300))
    await again.close()


async def test_what_comes_in_while_others_run_shares_their_commit(database: Database) -> None:
    running, go_on = threading.Event(), threading.Event()

    def slow(sql: sa.Connection) -> sa.RootTransaction | None:
        running.set()
        assert go_on.wait(10)
        return sql.get_transaction()

    first = asyncio.create_task(database.write(slow))
    await asyncio.to_thread(running.wait, 10)
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
        assert go_on.wait(10)

    def fill(sql: sa.Connection) -> None:
        sql.exec_driver_sql("INSERT INTO t VALUES (zeroblob(1000000))")

    holder = asyncio.create_task(database.write(hold))
    await asyncio.to_thread(blocked.wait, 10)
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
