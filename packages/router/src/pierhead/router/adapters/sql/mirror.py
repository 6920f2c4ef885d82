"""What is kept of other registries. No rule is decided here."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from pierhead.router.adapters.sql import mirror_tables as t
from pierhead.router.adapters.sql.statements import upsert
from pierhead.router.domain.upstream import Image, Login
from pierhead.router.ports.mirror import Mirrored

_SECRET: Final = "secret"  # noqa: S105 - the name of a column's content


class SqlMirror:
    """The part of one transaction that is about base images."""

    _sql: sa.Connection

    def logins(self) -> Sequence[Login]:
        """Return all registries that were added, by host, then project."""
        query = sa.select(t.logins).order_by(t.logins.c.host, t.logins.c.project)
        return [_login(row) for row in self._sql.execute(query).mappings()]

    def locked_login(self, login_id: str) -> Mapping[str, bytes]:
        """Return the secret of a login as the vault locked it."""
        query = sa.select(t.logins.c.locked).where(t.logins.c.id == login_id)
        locked = self._sql.execute(query).scalar()
        return {_SECRET: locked} if locked is not None else {}

    def save_login(self, login: Login, locked: Mapping[str, bytes]) -> None:
        """Add a login, in the place of the one for the same host and project."""
        self.drop_login(login.host, login.project)
        row = {
            "id": login.id,
            "host": login.host,
            "project": login.project,
            "username": login.username,
            "locked": locked.get(_SECRET),
            "plain_http": login.plain_http,
            "ca": login.ca,
            "added_at": login.added_at.timestamp(),
        }
        self._sql.execute(sa.insert(t.logins), row)

    def drop_login(self, host: str, project: str) -> Login | None:
        """Forget a login with its secret, and return it."""
        where = (t.logins.c.host == host, t.logins.c.project == project)
        row = self._sql.execute(sa.select(t.logins).where(*where)).mappings().first()
        if row is None:
            return None
        self._sql.execute(sa.delete(t.logins).where(*where))
        for table in (t.manifests, t.sizes, t.blobs):
            self._sql.execute(sa.delete(table).where(table.c.scope == row["id"]))
        return _login(row)

    def mirrored(self, scope: str, image: Image) -> Mirrored | None:
        """Return what is kept of a manifest, by tag or digest."""
        key = _manifest_key(scope, image)
        query = sa.select(t.manifests).where(*(t.manifests.c[name] == key[name] for name in key))
        row = self._sql.execute(query).mappings().first()
        if row is None:
            return None
        return Mirrored(
            digest=row["digest"],
            media_type=row["media_type"],
            body=row["body"],
            checked_at=_time(row["checked_at"]),
        )

    def keep_mirrored(self, scope: str, image: Image, found: Mirrored) -> None:
        """Keep a manifest under a tag or digest."""
        row = {
            **_manifest_key(scope, image),
            "digest": found.digest,
            "media_type": found.media_type,
            "body": found.body,
            "checked_at": found.checked_at.timestamp(),
        }
        upsert(self._sql, t.manifests, row)

    def mirrored_size(self, scope: str, image: Image) -> int | None:
        """Return the most that a manifest says a blob has, in bytes."""
        key = _manifest_key(scope, image)
        query = sa.select(t.sizes.c.size_bytes).where(*(t.sizes.c[n] == key[n] for n in key))
        found: int | None = self._sql.execute(query).scalar()
        return found

    def keep_mirrored_size(self, scope: str, image: Image, size_bytes: int, now: datetime) -> None:
        """Note what a manifest says of a blob; the most that was said counts."""
        most = max(size_bytes, self.mirrored_size(scope, image) or 0)
        row = {"size_bytes": most, "said_at": now.timestamp()}
        upsert(self._sql, t.sizes, {**_manifest_key(scope, image), **row})

    def mirrored_blob(self, scope: str, host: str, name: str, digest: str) -> datetime | None:
        """Return when a blob was last used under a login."""
        key = {"scope": scope, "host": host, "name": name, "digest": digest}
        query = sa.select(t.blobs.c.used_at).where(*(t.blobs.c[part] == key[part] for part in key))
        at = self._sql.execute(query).scalar()
        return _time(at) if at is not None else None

    def was_mirrored(self, host: str, name: str, digest: str) -> bool:
        """Say whether a blob was had from a place, under any login."""
        place = (t.blobs.c.host == host, t.blobs.c.name == name, t.blobs.c.digest == digest)
        query = sa.select(t.blobs.c.scope).where(*place)
        return self._sql.execute(query.limit(1)).first() is not None

    def keep_mirrored_blob(
        self, scope: str, host: str, name: str, digest: str, now: datetime
    ) -> None:
        """Note that a blob may be had under a login, and is used now."""
        key = {"scope": scope, "host": host, "name": name, "digest": digest}
        upsert(self._sql, t.blobs, {**key, "used_at": now.timestamp()})

    def forget_mirrored(self, before: datetime, limit: int) -> int:
        """Forget manifests, sizes and blobs that were not used since; at most so many of each."""
        aged = ((t.manifests, "checked_at"), (t.sizes, "said_at"), (t.blobs, "used_at"))
        return max([self._forget_some(table, at, before, limit) for table, at in aged])

    def _forget_some(self, table: sa.Table, at: str, before: datetime, limit: int) -> int:
        old: sa.Select[Any] = (
            sa.select(sa.literal_column("rowid"))
            .select_from(table)
            .where(table.c[at] < before.timestamp())
            .limit(limit)
        )
        query = sa.delete(table).where(sa.literal_column("rowid").in_(old))
        return self._sql.execute(query).rowcount


def _manifest_key(scope: str, image: Image) -> dict[str, Any]:
    place = {"host": image.host, "name": image.name, "reference": image.reference}
    return {"scope": scope, **place}


def _login(row: sa.RowMapping) -> Login:
    return Login(
        id=row["id"],
        host=row["host"],
        project=row["project"],
        username=row["username"],
        plain_http=row["plain_http"],
        ca=row["ca"],
        added_at=_time(row["added_at"]),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
