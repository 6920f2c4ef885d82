"""The router's tables. Times are seconds since the epoch; documents are JSON as on the wire."""

from typing import Final

import sqlalchemy as sa

from pierhead.router.adapters.sql.metadata import METADATA
from pierhead.router.adapters.sql.statements import selector

SCHEMA_VERSION: Final = 5  # of all tables here; a test compares them with what it stands for

builds = sa.Table(
    "router_builds",
    METADATA,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String, nullable=False, unique=True),
    sa.Column("project", sa.String, nullable=False),
    sa.Column("environment", sa.String, nullable=False),
    sa.Column("key", sa.String),
    sa.Column("supersedes", sa.String),
    sa.Column("submit", sa.LargeBinary, nullable=False),
    sa.Column("trusted", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("queued_since", sa.Float, nullable=False),
    sa.Column("idle_since", sa.Float),
    sa.Column("here_reason", sa.String),
    sa.Column("started_at", sa.Float),
    sa.Column("granted_at", sa.Float),
    sa.Column("last_runner", sa.String),
    sa.Column("last_request", sa.String),
    sa.Column("envelope", sa.LargeBinary),
    sa.Column("reference", sa.String),
    sa.Column("log_prefix", sa.Integer, nullable=False),
    sa.Column("log_complete", sa.Boolean),
    sa.Column("secrets_mac", sa.String),
    sa.Column("submitted_by", sa.String, nullable=False),
    sa.Column("preview", sa.Boolean, nullable=False),
    sa.Column("peak_bytes", sa.Integer),
    # Of several platforms: the child names its parent, the parent has its children as JSON.
    sa.Column("parent", sa.String),
    sa.Column("children", sa.LargeBinary),
    sa.Column("culprit", sa.String),
    # The machine's own state; the lease lives in the build, so the two cannot disagree.
    sa.Column("state", sa.String, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("broken_on", sa.String, nullable=False),  # names, with blanks between
    sa.Column("broken_why", sa.String, nullable=False),
    sa.Column("phase", sa.String),
    sa.Column("lease_session", sa.String),
    sa.Column("lease_expires_at", sa.Float),
    sa.Column("lease_ends_at", sa.Float),
    sa.Column("cancel_by", sa.String),
    sa.Column("cancel_reason", sa.String),
    sa.Column("result", sa.String),
    sa.Column("finished_at", sa.Float),
    sa.UniqueConstraint("project", "key"),
)
# Final builds are many, open ones few: the queue is read by an index that holds only the open.
sa.Index(
    "router_builds_open",
    builds.c.state,
    builds.c.sequence,
    sqlite_where=builds.c.state.in_(["queued", "leased"]) & builds.c.children.is_(None),
)
sa.Index(
    "router_builds_by_group",
    builds.c.project,
    builds.c.supersedes,
    sqlite_where=builds.c.supersedes.is_not(None),
)
sa.Index(
    "router_builds_in_line",
    builds.c.project,
    builds.c.sequence,
    sqlite_where=(builds.c.state == "queued") & builds.c.children.is_(None),
)
sa.Index("router_builds_by_end", builds.c.finished_at)
sa.Index("router_builds_by_project", builds.c.project, builds.c.sequence)
sa.Index("router_builds_by_environment", builds.c.project, builds.c.environment, builds.c.sequence)

# Encrypted, and only of builds that have not ended.
secrets = sa.Table(
    "router_secrets",
    METADATA,
    sa.Column("build_id", sa.String, primary_key=True),
    sa.Column("secret_id", sa.String, primary_key=True),
    sa.Column("locked", sa.LargeBinary, nullable=False),
)

events = sa.Table(
    "router_events",
    METADATA,
    sa.Column("build_id", sa.String, primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("log_size", sa.Integer, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)

runners = sa.Table(
    "router_runners",
    METADATA,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("credential_hash", sa.String, nullable=False),
    sa.Column("here", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("session_id", sa.String),
    sa.Column("process", sa.String),
    sa.Column("boot_id", sa.String),
    sa.Column("started_ms", sa.Integer),
    sa.Column("seen_at", sa.Float),
    sa.Column("turn", sa.Integer),
    sa.Column("ended", sa.Boolean),
    sa.Column("silent_at", sa.Float),
    sa.Column("public_key", sa.LargeBinary),
    sa.Column("state_id", sa.String),
    sa.Column("capabilities", sa.LargeBinary),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("reason", sa.String),
    sa.Column("refuses_since", sa.Float),
    sa.Column("authorities", sa.LargeBinary),
)
sa.Index("router_runners_by_hash", selector(runners.c.credential_hash))

codes = sa.Table(
    "router_join_codes",
    METADATA,
    sa.Column("secret_hash", sa.String, primary_key=True),
    sa.Column("runner", sa.String, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("spent_by", sa.String),
)

contexts = sa.Table(
    "router_contexts",
    METADATA,
    sa.Column("project", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("size_bytes", sa.Integer, nullable=False),
    sa.Column("unpacked_bytes", sa.Integer, nullable=False),
    sa.Column("files", sa.Integer, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False, index=True),
)

# One row: when this control plane last said that it accepts heartbeats.
alive = sa.Table(
    "router_alive",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
)
