"""One SQLite database: a single writer that commits in groups, and readers beside it.

SQLite has one writer at a time whatever one does. Giving it one thread, and committing all that
waits in one transaction, makes the durable setting (`synchronous=FULL`: nothing acknowledged is
lost at a power cut) affordable, because many operations share one flush to disk.

An operation is a plain function over a connection. It runs inside a savepoint, so one that raises
undoes itself alone. Operations never wait for anything but the database.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import Problem, problem

T = TypeVar("T")
Operation: TypeAlias = Callable[[sa.Connection], T]
_Waiting: TypeAlias = tuple[Operation[Any], Future[Any]]

# Enough to share a flush among all that arrived during the last one.
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

    @classmethod
    async def open(cls, path: Path, metadata: sa.MetaData, version: int) -> "Database":
        """Open a database, with its tables; nothing is left open when that fails.

        Raises:
            Unavailable: it is none, not ours, of another release, or cannot be used; and why.
        """
        await asyncio.to_thread(_try_out, path, metadata, version)
        database = cls(path)
        try:
            await database.write(lambda connection: _prepare(connection, metadata, version))
        except Exception:
            await database.close()
            raise
        return database

    def __init__(self, path: Path) -> None:
        self._engine = sa.create_engine(f"sqlite:///{path}", pool_size=READERS + 1, max_overflow=0)
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", lambda connection: _begin(connection))
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
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
        try:
            with self._engine.connect().execution_options(pierhead_begin="DEFERRED") as connection:
                return operation(connection)
        except sa.exc.OperationalError as error:
            raise _unavailable(error) from error

    def _write_all(self) -> None:
        with self._engine.connect() as connection:
            while (first := self._waiting.get()) is not None:
                _commit_group(connection, self._group(first))

    def _group(self, first: _Waiting) -> Iterator[_Waiting]:
        """Yield an operation, and then whatever has come in while the ones before it ran."""
        yield first
        for _ in range(GROUP_MAX - 1):
            try:
                following = self._waiting.get_nowait()
            except queue.Empty:
                return
            if following is None:
                self._waiting.put(None)  # the end comes after this group
                return
            yield following


def _try_out(path: Path, metadata: sa.MetaData, version: int) -> None:
    """See that a file is a database of ours, or can be made one; change nothing of it."""
    try:
        # Without the usual pragmas: those would change what is somebody else's.
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            there = {name for (name,) in found}
            if there and there.isdisjoint(metadata.tables):
                raise _not_ours(f"{path} is a database of something else", _begin_anew(path))
            [(known,)] = connection.execute("PRAGMA user_version")
            if there and known != version:
                raise _of_another_release(path, known, version)
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
    except sqlite3.Error as error:
        raise Unavailable(_unusable(path, error)) from error


def _not_ours(detail: str, hint: str) -> Unavailable:
    return Unavailable(problem("dependency-unavailable", detail, hint=hint))


def _of_another_release(path: Path, known: int, version: int) -> Unavailable:
    detail = f"it has version {known}, this one knows {version}"
    if known > version:
        hint = "start the newer release, or restore a backup from before it"
        return _not_ours(f"{path} is of a newer release: {detail}", hint)
    hint = f"start the older release, or begin anew without it: mv {path} {path}.old"
    return _not_ours(f"{path} is of an older release: {detail}", hint)


def _begin_anew(path: Path) -> str:
    return f"restore it from a backup, or begin anew without it: mv {path} {path}.old"


def _unusable(path: Path, error: sqlite3.Error) -> Problem:
    name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").partition("_")[0]
    if name == "FULL":
        hint = f"free some space on the disk of {path}"
        return problem("storage-full", f"the disk of {path} is full", hint=hint)
    detail, hint = {
        "NOTADB": ("is not a database", _begin_anew(path)),
        "CORRUPT": ("is damaged", _begin_anew(path)),
        "READONLY": ("cannot be written", f"give it to whoever runs this: chown USER {path}"),
        "CANTOPEN": ("cannot be opened", f"look who may: ls -l {path}"),
        "BUSY": ("is in use by another program", f"end that one: fuser {path}"),
    }.get(name, (f"cannot be used: {error}", _begin_anew(path)))
    return problem("dependency-unavailable", f"{path} {detail}", hint=hint)


def _prepare(connection: sa.Connection, metadata: sa.MetaData, version: int) -> None:
    metadata.create_all(connection)
    connection.exec_driver_sql(f"PRAGMA user_version={version}")


def _commit_group(connection: sa.Connection, group: Iterable[_Waiting]) -> None:
    """Run all operations in one transaction; tell their callers only once it is committed."""
    outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
    try:
        with connection.begin():
            for operation, done in group:
                # From here on its caller cannot cancel: setting a cancelled future would end this
                # thread, and with it all later writes.
                if done.set_running_or_notify_cancel():
                    outcomes.append((done, *_attempt(connection, operation)))
                    _require_transaction(connection)
    except _RolledBack:
        failure = outcomes[-1][2]
        outcomes = [(done, None, failure) for done, _, _ in outcomes]
    except sa.exc.SQLAlchemyError as error:
        failure = _unavailable(error)
        outcomes = [(done, None, failure) for done, _, _ in outcomes]
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


class _RolledBack(Exception):
    """The transaction is gone: whoever was in it has to be told the same."""


def _require_transaction(connection: sa.Connection) -> None:
    """Raise `_RolledBack` when SQLite ended it by itself, as it does when the disk is full."""
    if not getattr(connection.connection.driver_connection, "in_transaction", False):
        raise _RolledBack


def _unavailable(error: BaseException) -> Unavailable:
    """Return what callers are told: a full disk, even when that made something else go wrong."""
    full = next((text for text in _reasons(error) if "disk is full" in text), None)
    if full is not None:
        hint = "free some space on the control plane's disk"
        return Unavailable(problem("storage-full", f"could not store it: {full}", hint=hint))
    text = str(getattr(error, "orig", error))
    return Unavailable(
        problem("dependency-unavailable", f"the database could not store it: {text}")
    )


def _reasons(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(getattr(error, "orig", error))
        error = error.__context__


def _configure(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver would not, for SELECT
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _begin(connection: sa.Connection) -> None:
    kind = connection.get_execution_options().get("pierhead_begin", "IMMEDIATE")
    connection.exec_driver_sql(f"BEGIN {kind}")
