"""The registry's tables.

`pending` names the attempt whose result has not been accepted ("b_x.1"), and is empty for what the
whole project sees.
"""

import sqlalchemy as sa

from pierhead.router.adapters.sql.metadata import METADATA

manifests = sa.Table(
    "router_manifests",
    METADATA,
    sa.Column("repository", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("pending", sa.String, primary_key=True),
    sa.Column("media_type", sa.String, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("subject", sa.String),
)
sa.Index(
    "router_referrers",
    manifests.c.repository,
    manifests.c.subject,
    sqlite_where=manifests.c.subject.is_not(None),
)

# What each manifest cannot do without: blobs, and manifests of an index. Rows of a manifest go
# when no row of it is left, pending or not.
parts = sa.Table(
    "router_manifest_parts",
    METADATA,
    sa.Column("repository", sa.String, primary_key=True),
    sa.Column("part", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
)
sa.Index("router_parts_by_manifest", parts.c.repository, parts.c.digest)

blob_links = sa.Table(
    "router_blob_links",
    METADATA,
    sa.Column("repository", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("pending", sa.String, primary_key=True),
    # When somebody was last told that it is here: until a while later a push may rely on it.
    sa.Column("told_at", sa.Float, nullable=False),
)
sa.Index("router_links_by_digest", blob_links.c.digest)

tags = sa.Table(
    "router_tags",
    METADATA,
    sa.Column("repository", sa.String, primary_key=True),
    sa.Column("tag", sa.String, primary_key=True),
    sa.Column("digest", sa.String, nullable=False),
)
