"""What the registry keeps: manifests, links to blobs, tags. No rule is decided here."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from pierhead.router.adapters.sql import image_tables as t
from pierhead.router.adapters.sql.statements import upsert
from pierhead.router.ports import Manifest


class SqlImages:
    """The registry's part of one transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def manifest(self, repository: str, wanted: str, attempt: str) -> Manifest | None:
        """Return a manifest by digest or tag, as the attempt (or, empty, anybody) sees it."""
        digest = wanted
        if not wanted.startswith("sha256:"):
            tagged = sa.select(t.tags.c.digest).where(
                t.tags.c.repository == repository, t.tags.c.tag == wanted
            )
            digest = self._sql.execute(tagged).scalar() or ""
        query = sa.select(t.manifests).where(
            t.manifests.c.repository == repository,
            t.manifests.c.digest == digest,
            t.manifests.c.pending.in_({"", attempt}),
        )
        row = self._sql.execute(query).mappings().first()
        if row is None:
            return None
        return Manifest(
            repository=repository,
            digest=row["digest"],
            media_type=row["media_type"],
            body=row["body"],
        )

    def add_manifest(self, manifest: Manifest, pending: str) -> None:
        """Store a manifest; `pending`: only for this attempt."""
        row = {
            "repository": manifest.repository,
            "digest": manifest.digest,
            "pending": pending,
            "media_type": manifest.media_type,
            "body": manifest.body,
        }
        upsert(self._sql, t.manifests, row)

    def delete_manifest(self, repository: str, wanted: str) -> bool:
        """Delete a tag, or a manifest with the tags on it; false: there was none."""
        column = t.tags.c.digest if wanted.startswith("sha256:") else t.tags.c.tag
        where = (t.tags.c.repository == repository, column == wanted)
        gone = self._sql.execute(sa.delete(t.tags).where(*where)).rowcount
        if wanted.startswith("sha256:"):
            gone = self._sql.execute(
                sa.delete(t.manifests).where(
                    t.manifests.c.repository == repository,
                    t.manifests.c.digest == wanted,
                    t.manifests.c.pending == "",
                )
            ).rowcount
        return gone > 0

    def has_blob(self, repository: str, digest: str, attempt: str) -> bool:
        """Say whether a blob is linked where the attempt (or, empty, anybody) sees it."""
        query = sa.select(t.blob_links.c.digest).where(
            t.blob_links.c.repository == repository,
            t.blob_links.c.digest == digest,
            t.blob_links.c.pending.in_({"", attempt}),
        )
        return self._sql.execute(query).first() is not None

    def link_blob(self, repository: str, digest: str, pending: str) -> None:
        """Make a blob visible; `pending`: only to this attempt."""
        row = {"repository": repository, "digest": digest, "pending": pending}
        self._sql.execute(insert(t.blob_links).values(row).on_conflict_do_nothing())

    def set_tag(self, repository: str, tag: str, digest: str) -> None:
        """Move a tag."""
        upsert(self._sql, t.tags, {"repository": repository, "tag": tag, "digest": digest})

    def tags(self, repository: str) -> Sequence[str]:
        """Return all tags of a repository, sorted."""
        query = sa.select(t.tags.c.tag).where(t.tags.c.repository == repository)
        return list(self._sql.execute(query.order_by(t.tags.c.tag)).scalars())

    def publish(self, repository: str, pending: str) -> None:
        """Make all that an attempt pushed visible to its project."""
        for table in (t.blob_links, t.manifests):
            columns = [c for c in table.c if c.name != "pending"]
            mine = sa.select(*columns, sa.literal("")).where(
                table.c.repository == repository, table.c.pending == pending
            )
            names = [column.name for column in columns]
            query = insert(table).from_select([*names, "pending"], mine)
            self._sql.execute(query.on_conflict_do_nothing())
        self.forget(repository, pending)

    def forget(self, repository: str, pending: str) -> None:
        """Drop what an attempt pushed and nobody accepted."""
        assert pending
        for table in (t.blob_links, t.manifests):
            where = (table.c.repository == repository, table.c.pending == pending)
            self._sql.execute(sa.delete(table).where(*where))
