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
)

blob_links = sa.Table(
    "router_blob_links",
    METADATA,
    sa.Column("repository", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("pending", sa.String, primary_key=True),
)

tags = sa.Table(
    "router_tags",
    METADATA,
    sa.Column("repository", sa.String, primary_key=True),
    sa.Column("tag", sa.String, primary_key=True),
    sa.Column("digest", sa.String, nullable=False),
)
