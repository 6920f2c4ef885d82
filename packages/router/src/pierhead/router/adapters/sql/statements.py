"""Statements that several tables need."""

import functools
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

# Secrets are looked for by the first half of a hash, which tells nothing about them; whoever asked
# compares the whole in constant time.
SELECTOR_LENGTH: Final = 32


def selector(hashed: sa.Column[str]) -> sa.ColumnElement[str]:
    """Return the part of a hash that is looked for."""
    # Numbers as they are and no parameters: only then does the index over this fit.
    bounds = [sa.literal_column(text, sa.Integer) for text in ("1", str(SELECTOR_LENGTH))]
    found: sa.ColumnElement[str] = sa.func.substr(hashed, *bounds)
    return found


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
