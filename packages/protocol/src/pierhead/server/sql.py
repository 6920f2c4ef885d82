"""One SQLite database: a single writer that commits in groups, and readers beside it.

SQLite has one writer at a time whatever one does. Giving it one thread, and committing all that
waits in one transaction, makes the durable setting (`synchronous=FULL`: nothing acknowledged is
lost at a power cut) affordable, because many operations share one flush to disk.

An operation is a plain function over a connection. It runs inside a savepoint, so one that raises
undoes itself alone. Operations never wait for anything but the database.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import problem

T = TypeVar("T")
Operation: TypeAlias = Callable[[sa.Connection], T]

# Enough to share a flush among all that arrived during the last one; a batch stays under 5 ms.
GROUP_MAX: Final = 256
READERS: Final = 2
_PRAGMAS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA busy_timeout=5000",
)


class Database:
    """An open database. `read` and `write` may be awaited from one event loop."""

    def __init__(self, path: Path) -> None:
        self._engine = sa.create_engine(f"sqlite:///{path}", pool_size=READERS + 1, max_overflow=0)
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", lambda connection: _begin(connection))
        self._waiting: queue.SimpleQueue[tuple[Operation[Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="sql-read")
        self._writer = threading.Thread(target=self._write_all, name="sql-write", daemon=True)
        self._writer.start()

    async def write(self, operation: Operation[T]) -> T:
        """Run an operation, and return its value once it is on the disk.

        Raises:
            Unavailable: the database could not commit (`storage-full` when the disk is full).
        """
        done: Future[T] = Future()
        self._waiting.put((operation, done))
        return await asyncio.wrap_future(done)

    async def read(self, operation: Operation[T]) -> T:
        """Run an operation that only reads, on the last committed state."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, operation)

    async def close(self) -> None:
        """Finish what waits, then close. No operation may be started afterwards."""
        self._waiting.put(None)
        await asyncio.to_thread(self._writer.join)
        self._readers.shutdown()
        self._engine.dispose()

    def _read(self, operation: Operation[T]) -> T:
        with self._engine.connect().execution_options(pierhead_begin="DEFERRED") as connection:
            return operation(connection)

    def _write_all(self) -> None:
        with self._engine.connect() as connection:
            while (group := self._next_group()) is not None:
                _commit_group(connection, group)

    def _next_group(self) -> "list[tuple[Operation[Any], Future[Any]]] | None":
        first = self._waiting.get()
        if first is None:
            return None
        group = [first]
        while len(group) < GROUP_MAX:
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self._waiting.put(None)  # the end comes after this group
                break
            group.append(following)
        return group


def _commit_group(
    connection: sa.Connection, group: "list[tuple[Operation[Any], Future[Any]]]"
) -> None:
    """Run all operations in one transaction; tell their callers only once it is committed."""
    # From here on no caller can cancel: setting a cancelled future would end this thread, and with
    # it all later writes.
    group = [pair for pair in group if pair[1].set_running_or_notify_cancel()]
    outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
    try:
        with connection.begin():
            for operation, done in group:
                outcomes.append((done, *_attempt(connection, operation)))
    except sa.exc.SQLAlchemyError as error:
        failure = _unavailable(error)
        outcomes = [(done, None, failure) for _, done in group]
    for done, value, failed in outcomes:
        if failed is None:
            done.set_result(value)
        else:
            done.set_exception(failed)


def _attempt(
    connection: sa.Connection, operation: Operation[T]
) -> tuple[T | None, BaseException | None]:
    """Run one operation in its savepoint and return its value or its error."""
    try:
        with connection.begin_nested():
            return operation(connection), None
    except sa.exc.OperationalError as error:
        return None, _unavailable(error)
    except Exception as error:  # the caller's own; it must not undo what the others did
        return None, error


def _unavailable(error: sa.exc.SQLAlchemyError) -> Unavailable:
    text = str(getattr(error, "orig", error))
    slug = "storage-full" if "disk is full" in text else "dependency-unavailable"
    return Unavailable(problem(slug, f"the database could not store it: {text}"))


def _configure(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver would not, for SELECT
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _begin(connection: sa.Connection) -> None:
    kind = connection.get_execution_options().get("pierhead_begin", "IMMEDIATE")
    connection.exec_driver_sql(f"BEGIN {kind}")
