"""Statements that every table needs."""

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert


def upsert(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> None:
    """Add a row, or change the one with its key."""
    connection.execute(_upsert_into(table, tuple(row)), row)


@functools.cache
def _upsert_into(table: sa.Table, names: tuple[str, ...]) -> sa.Insert:
    """Return the statement that adds a row of these columns, or changes the one with its key."""
    keys = [column.name for column in table.primary_key]
    query = insert(table).values({name: sa.bindparam(name) for name in names})
    changed = {name: query.excluded[name] for name in names if name not in keys}
    return query.on_conflict_do_update(index_elements=keys, set_=changed)
