"""The platform's table of deployments. Yours is a Django model; this one is SQLite by hand."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS deployment (
    id INTEGER PRIMARY KEY, project TEXT, checkout TEXT, status TEXT DEFAULT 'new',
    image TEXT, error TEXT, hint TEXT
);
CREATE TABLE IF NOT EXISTS log_part (
    deployment INTEGER, start INTEGER, data BLOB, PRIMARY KEY (deployment, start)
);
"""


class Deployments:
    """All deployments, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._open() as sql:
            sql.executescript(TABLES)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._file)
        connection.row_factory = sqlite3.Row
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def add(self, project: str, checkout: Path) -> int:
        """Add a deployment."""
        with self._open() as sql:
            columns = "INSERT INTO deployment (project, checkout) VALUES (?, ?)"
            made = sql.execute(columns, (project, str(checkout)))
            assert made.lastrowid is not None
            return made.lastrowid

    def load(self, deployment_id: int) -> dict[str, Any]:
        """Return one."""
        with self._open() as sql:
            query = "SELECT * FROM deployment WHERE id = ?"
            return dict(sql.execute(query, (deployment_id,)).fetchone())

    def change(self, deployment_id: int, **values: object) -> None:
        """Change columns of one."""
        with self._open() as sql:
            for column, value in values.items():
                assert column in {"status", "image", "error", "hint"}
                query = f"UPDATE deployment SET {column} = ? WHERE id = ?"  # noqa: S608 - checked
                sql.execute(query, (value, deployment_id))

    def write_log(self, deployment_id: int, start: int, data: bytes) -> None:
        """Keep a part of the log where it belongs: however often it comes, it is there once."""
        with self._open() as sql:
            sql.execute(
                "INSERT OR REPLACE INTO log_part VALUES (?, ?, ?)", (deployment_id, start, data)
            )

    def clear_log(self, deployment_id: int) -> None:
        """Forget the log: another attempt begins."""
        with self._open() as sql:
            sql.execute("DELETE FROM log_part WHERE deployment = ?", (deployment_id,))

    def log(self, deployment_id: int) -> bytes:
        """Return the whole log."""
        with self._open() as sql:
            query = "SELECT data FROM log_part WHERE deployment = ? ORDER BY start"
            return b"".join(row["data"] for row in sql.execute(query, (deployment_id,)))
