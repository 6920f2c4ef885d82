"""The tables of other registries: the owner's logins, and what was seen under each.

`scope` is the id of a login, or empty: what was seen without one.
"""

import sqlalchemy as sa

from pierhead.router.adapters.sql.metadata import METADATA

logins = sa.Table(
    "router_logins",
    METADATA,
    sa.Column("host", sa.String, primary_key=True),
    sa.Column("project", sa.String, primary_key=True),  # empty: for all
    sa.Column("id", sa.String, nullable=False, unique=True),
    sa.Column("username", sa.String),
    sa.Column("locked", sa.LargeBinary),
    sa.Column("plain_http", sa.Boolean, nullable=False),
    sa.Column("ca", sa.String),
    sa.Column("added_at", sa.Float, nullable=False),
)

manifests = sa.Table(
    "router_mirrored_manifests",
    METADATA,
    sa.Column("scope", sa.String, primary_key=True),
    sa.Column("host", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("reference", sa.String, primary_key=True),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("media_type", sa.String, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("checked_at", sa.Float, nullable=False),
)
sa.Index("router_mirrored_manifests_by_age", manifests.c.checked_at)

# What manifests say of their blobs, so that nobody can send more of one.
sizes = sa.Table(
    "router_mirrored_sizes",
    METADATA,
    sa.Column("scope", sa.String, primary_key=True),
    sa.Column("host", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("reference", sa.String, primary_key=True),  # the blob's digest
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("said_at", sa.Float, nullable=False),
)
sa.Index("router_mirrored_sizes_by_age", sizes.c.said_at)

blobs = sa.Table(
    "router_mirrored_blobs",
    METADATA,
    sa.Column("scope", sa.String, primary_key=True),
    sa.Column("host", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("used_at", sa.Float, nullable=False),
)
sa.Index("router_mirrored_blobs_by_digest", blobs.c.digest)
sa.Index("router_mirrored_blobs_by_age", blobs.c.used_at)
