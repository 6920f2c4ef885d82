"""A database of before is told from one of now: the tables stay what their number stands for."""

import hashlib

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

import pierhead.router.adapters.sql.ledger  # noqa: F401 - declares all of the router's tables
from pierhead.router.adapters.sql import content_index, tables
from pierhead.router.adapters.sql.metadata import METADATA

# A change of a table raises its SCHEMA_VERSION, and the pair is written here anew.
RECORDED = {
    "router": (5, "6f6a2699403a9b68"),
    "content": (1, "51f9933a35bc8131"),
}
NOW = {
    "router": (tables.SCHEMA_VERSION, METADATA),
    "content": (content_index.SCHEMA_VERSION, content_index.METADATA),
}


def definition(found: sa.MetaData) -> str:
    """Return what makes all tables and indexes, whatever order they were declared in."""
    of_all: list[ExecutableDDLElement] = []
    for table in found.sorted_tables:
        of_all += [CreateTable(table), *map(CreateIndex, table.indexes)]
    made = [str(element.compile(dialect=sqlite.dialect())) for element in of_all]
    return "\n".join(sorted(" ".join(text.split()) for text in made))


@pytest.mark.parametrize("name", RECORDED)
def test_tables_are_those_of_their_number(name: str) -> None:
    version, metadata = NOW[name]
    found = hashlib.sha256(definition(metadata).encode()).hexdigest()[:16]
    assert (version, found) == RECORDED[name], definition(metadata)
