"""What is kept of projects, environments and tokens. No rule is decided here."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from pierhead.router.adapters.sql import project_tables as t
from pierhead.router.adapters.sql.image_tables import manifests, tags
from pierhead.router.adapters.sql.metadata import METADATA
from pierhead.router.adapters.sql.statements import SELECTOR_LENGTH, selector, upsert
from pierhead.router.adapters.sql.tables import builds
from pierhead.router.domain.credential import Credential, Terms
from pierhead.router.ports.projects import Contents, StoredEnvironment, StoredProject

# What people count: a build for several platforms is one.
_WHOLE: Final = builds.c.parent.is_(None)
_OPEN: Final = builds.c.state.in_(["queued", "leased"])
_TAKE_TURN: Final = (
    sa.update(t.projects)
    .where(t.projects.c.name == sa.bindparam("called"))
    .values(turn=sa.select(sa.func.max(t.projects.c.turn) + 1).scalar_subquery())
)
_PROJECT: Final = sa.select(t.projects).where(t.projects.c.name == sa.bindparam("called"))
_ENVIRONMENT: Final = sa.select(t.environments).where(
    t.environments.c.project == sa.bindparam("of"), t.environments.c.name == sa.bindparam("called")
)
_BY_HASH: Final = sa.select(t.tokens).where(selector(t.tokens.c.hash) == sa.bindparam("part"))


class SqlProjects:
    """The part of one transaction that projects and tokens see."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    # Projects.

    def project(self, name: str) -> StoredProject | None:
        """Return one project."""
        row = self._sql.execute(_PROJECT, {"called": name}).mappings().first()
        return _project(row) if row is not None else None

    def projects_page(self, limit: int, after: str, only: str | None) -> Sequence[StoredProject]:
        """Return projects by name, beyond `after`, with how many builds they had."""
        count = (
            sa.select(sa.func.count())
            .where(builds.c.project == t.projects.c.name, _WHOLE)
            .scalar_subquery()
            .label("builds")
        )
        query = sa.select(t.projects, count).where(t.projects.c.name > after)
        if only is not None:
            query = query.where(t.projects.c.name == only)
        rows = self._sql.execute(query.order_by(t.projects.c.name).limit(limit)).mappings()
        return [_project(row) for row in rows]

    def removing(self) -> Sequence[str]:
        """Return the projects whose removal was begun."""
        query = sa.select(t.projects.c.name).where(t.projects.c.removing)
        return list(self._sql.execute(query).scalars())

    def take_turn(self, project: str) -> None:
        """Say that the project has a grant now, later than any other project's."""
        self._sql.execute(_TAKE_TURN, {"called": project})

    def give_turn_back(self, project: str) -> None:
        """Say that the project's last grant came to nothing."""
        mine = t.projects.c.name == project
        self._sql.execute(sa.update(t.projects).where(mine).values(turn=0))

    def save_project(self, project: StoredProject) -> None:
        """Add a project, or store one that was changed."""
        row = {
            "name": project.name,
            "trusted": project.trusted,
            "removing": project.removing,
            "created_at": project.created_at.timestamp(),
        }
        upsert(self._sql, t.projects, row)

    def contents(self, project: str) -> Contents:
        """Count what a project has."""
        return Contents(
            builds=self._count(builds, builds.c.project == project, _WHOLE),
            open_builds=self._count(builds, builds.c.project == project, _WHOLE, _OPEN),
            images=self._count(manifests, manifests.c.repository == project),
            tags=self._count(tags, tags.c.repository == project),
            environments=self._count(t.environments, t.environments.c.project == project),
            tokens=self._count(
                t.tokens, t.tokens.c.project == project, t.tokens.c.revoked_at.is_(None)
            ),
        )

    def purge_project(self, project: str, limit: int) -> tuple[bool, Sequence[str]]:
        """Delete some of what a project had; say whether more is left, and which builds went.

        Whatever names a project, a repository or a build goes, in whichever table it is; so a
        table that is added later is not forgotten.
        """
        oldest = sa.select(builds.c.id).where(builds.c.project == project).limit(limit)
        gone = list(self._sql.execute(oldest).scalars())
        deleted = 0
        for table in METADATA.tables.values():
            if table is t.projects:
                continue
            if "build_id" in table.c:
                self._sql.execute(sa.delete(table).where(table.c.build_id.in_(gone)))
            if table is builds:
                deleted += self._sql.execute(sa.delete(table).where(table.c.id.in_(gone))).rowcount
                continue
            for owner in ("project", "repository"):
                if owner in table.c:
                    deleted += self._delete_some(table, table.c[owner] == project, limit)
        if not deleted:
            self._sql.execute(sa.delete(t.projects).where(t.projects.c.name == project))
        return deleted > 0, gone

    # Environments.

    def environment(self, project: str, name: str) -> StoredEnvironment | None:
        """Return one environment."""
        row = self._sql.execute(_ENVIRONMENT, {"of": project, "called": name}).mappings().first()
        return _environment(row) if row is not None else None

    def environments_page(
        self, project: str, limit: int, after: str
    ) -> Sequence[StoredEnvironment]:
        """Return environments by name, beyond `after`, with how many builds they had."""
        mine = (
            builds.c.project == t.environments.c.project,
            builds.c.environment == t.environments.c.name,
            _WHOLE,
        )
        count = sa.select(sa.func.count()).where(*mine).scalar_subquery().label("builds")
        query = (
            sa.select(t.environments, count)
            .where(t.environments.c.project == project, t.environments.c.name > after)
            .order_by(t.environments.c.name)
        )
        return [_environment(row) for row in self._sql.execute(query.limit(limit)).mappings()]

    def save_environment(self, environment: StoredEnvironment) -> None:
        """Add an environment, or store one that was changed."""
        row = {
            "project": environment.project,
            "name": environment.name,
            "preview": environment.preview,
            "created_at": environment.created_at.timestamp(),
        }
        upsert(self._sql, t.environments, row)

    def drop_environment(self, project: str, name: str) -> None:
        """Forget an environment; its builds stay."""
        self._sql.execute(sa.delete(t.environments).where(*_environment_key(project, name)))

    def open_builds(self, project: str, environment: str) -> int:
        """Return how many builds of an environment wait or run."""
        mine = (builds.c.project == project, builds.c.environment == environment)
        return self._count(builds, *mine, _WHOLE, _OPEN)

    # Tokens.

    def credential(self, token_id: str) -> Credential | None:
        """Return one token."""
        return self._credential(sa.select(t.tokens).where(t.tokens.c.id == token_id))

    def credential_by_hash(self, token_hash: str) -> Credential | None:
        """Return the token whose hash begins as this one does; the caller compares the whole."""
        row = self._sql.execute(_BY_HASH, {"part": token_hash[:SELECTOR_LENGTH]}).mappings().first()
        return _credential(row) if row is not None else None

    def credential_by_key(self, project: str | None, key: str) -> Credential | None:
        """Return the token that was made under a key."""
        mine = (t.tokens.c.project == (project or ""), t.tokens.c.key == key)
        return self._credential(sa.select(t.tokens).where(*mine))

    def credentials_page(
        self, project: str | None, limit: int, before: int | None
    ) -> Sequence[tuple[int, Credential]]:
        """Return tokens of a project (none: the owner's), newest first, each with its number."""
        query = sa.select(t.tokens).where(t.tokens.c.project == (project or ""))
        if before is not None:
            query = query.where(t.tokens.c.sequence < before)
        rows = self._sql.execute(query.order_by(t.tokens.c.sequence.desc()).limit(limit))
        return [(row["sequence"], _credential(row)) for row in rows.mappings()]

    def save_credential(self, credential: Credential) -> None:
        """Add a token, or store one that was changed."""
        row = _credential_row(credential)
        changed = sa.update(t.tokens).where(t.tokens.c.id == credential.id).values(row)
        if not self._sql.execute(changed).rowcount:
            self._sql.execute(sa.insert(t.tokens).values(row))

    def revoke_credentials(self, project: str, environment: str | None, now: datetime) -> int:
        """Revoke all tokens of a project, or of one environment; return how many lived."""
        query = sa.update(t.tokens).where(
            t.tokens.c.project == project, t.tokens.c.revoked_at.is_(None)
        )
        if environment is not None:
            query = query.where(t.tokens.c.environment == environment)
        return self._sql.execute(query.values(revoked_at=now.timestamp())).rowcount

    def forget_credentials(self, project: str | None, dead_before: datetime) -> None:
        """Forget tokens that were revoked or ended before."""
        at = dead_before.timestamp()
        ended = t.tokens.c.created_at + t.tokens.c.lifetime < at
        mine = t.tokens.c.project == (project or "")
        self._sql.execute(sa.delete(t.tokens).where(mine, (t.tokens.c.revoked_at < at) | ended))

    def note_uses(self, uses: Mapping[str, datetime]) -> None:
        """Store when tokens were last used, if no other process stored a later use."""
        at = t.tokens.c.used_at
        later = at.is_(None) | (at < sa.bindparam("at"))
        query = sa.update(t.tokens).where(t.tokens.c.id == sa.bindparam("used"), later)
        rows = [{"used": token_id, "at": at.timestamp()} for token_id, at in uses.items()]
        if rows:
            self._sql.execute(query.values(used_at=sa.bindparam("at")), rows)

    def _credential(self, query: sa.Select[Any]) -> Credential | None:
        row = self._sql.execute(query).mappings().first()
        return _credential(row) if row is not None else None

    def _count(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(*where)
        return int(self._sql.execute(query).scalar_one())

    def _delete_some(self, table: sa.Table, mine: sa.ColumnElement[bool], limit: int) -> int:
        rowid: sa.ColumnClause[int] = sa.literal_column("rowid", sa.Integer)
        some = sa.select(rowid).select_from(table).where(mine).limit(limit)
        return self._sql.execute(sa.delete(table).where(rowid.in_(some))).rowcount


def _environment_key(project: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return t.environments.c.project == project, t.environments.c.name == name


def _project(row: sa.RowMapping) -> StoredProject:
    kept = {name: value for name, value in row.items() if name != "turn"}
    return StoredProject(**{**kept, "created_at": _time(row["created_at"])})


def _environment(row: sa.RowMapping) -> StoredEnvironment:
    return StoredEnvironment(**{**row, "created_at": _time(row["created_at"])})


def _credential(row: sa.RowMapping) -> Credential:
    lifetime = row["lifetime"]
    terms = Terms(
        name=row["name"],
        project=row["project"] or None,
        ability=row["ability"],
        environment=row["environment"],
        lifetime=timedelta(seconds=lifetime) if lifetime is not None else None,
    )
    return Credential(
        id=row["id"],
        key=row["key"],
        terms=terms,
        hash=row["hash"],
        tail=row["tail"],
        created_at=_time(row["created_at"]),
        created_by=row["created_by"],
        used_at=_maybe(row["used_at"]),
        revoked_at=_maybe(row["revoked_at"]),
    )


def _credential_row(credential: Credential) -> dict[str, Any]:
    terms = credential.terms
    return {
        "id": credential.id,
        "key": credential.key,
        "project": terms.project or "",
        "name": terms.name,
        "ability": terms.ability,
        "environment": terms.environment,
        "lifetime": terms.lifetime.total_seconds() if terms.lifetime is not None else None,
        "hash": credential.hash,
        "tail": credential.tail,
        "created_at": credential.created_at.timestamp(),
        "created_by": credential.created_by,
        "used_at": credential.used_at.timestamp() if credential.used_at else None,
        "revoked_at": credential.revoked_at.timestamp() if credential.revoked_at else None,
    }


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe(seconds: float | None) -> datetime | None:
    return _time(seconds) if seconds is not None else None
