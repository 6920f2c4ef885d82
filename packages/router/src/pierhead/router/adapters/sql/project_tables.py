"""The tables of projects, environments and tokens. An owner's token has the project ""."""

import sqlalchemy as sa

from pierhead.router.adapters.sql.metadata import METADATA
from pierhead.router.adapters.sql.statements import selector

projects = sa.Table(
    "router_projects",
    METADATA,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("trusted", sa.Boolean, nullable=False),
    sa.Column("removing", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("turn", sa.Integer, nullable=False, server_default="0"),
)
sa.Index("router_projects_by_turn", projects.c.turn)

environments = sa.Table(
    "router_environments",
    METADATA,
    sa.Column("project", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("preview", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

tokens = sa.Table(
    "router_tokens",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String, nullable=False, unique=True),
    sa.Column("project", sa.String, nullable=False),
    sa.Column("key", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("ability", sa.String, nullable=False),
    sa.Column("environment", sa.String),
    sa.Column("lifetime", sa.Float),
    sa.Column("hash", sa.String, nullable=False),
    sa.Column("tail", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("created_by", sa.String, nullable=False),
    sa.Column("used_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.UniqueConstraint("project", "key"),
)
sa.Index("router_tokens_by_hash", selector(tokens.c.hash))
