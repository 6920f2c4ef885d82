"""What the registry keeps: manifests, links to blobs, tags. No rule is decided here."""

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from pierhead.router.adapters.sql import image_tables as t
from pierhead.router.adapters.sql.mirror_tables import blobs as mirrored
from pierhead.router.adapters.sql.statements import upsert
from pierhead.router.ports.images import Link, Manifest


class SqlImages:
    """The registry's part of one transaction."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def manifest(self, repository: str, wanted: str, attempt: str) -> Manifest | None:
        """Return a manifest by digest or tag."""
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
        return _manifest(row) if row is not None else None

    def add_manifest(self, manifest: Manifest, pending: str) -> None:
        """Store a manifest; `pending`: only for this attempt."""
        row = {
            "repository": manifest.repository,
            "digest": manifest.digest,
            "pending": pending,
            "media_type": manifest.media_type,
            "body": manifest.body,
            "subject": manifest.subject,
        }
        upsert(self._sql, t.manifests, row)
        whole = {"repository": manifest.repository, "digest": manifest.digest}
        parts = [{**whole, "part": part} for part in set(manifest.parts)]
        if parts:
            self._sql.execute(insert(t.parts).on_conflict_do_nothing(), parts)

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
            self._forget_parts(repository, [wanted])
        return gone > 0

    def referrers(
        self, repository: str, subject: str, attempt: str, after: str, limit: int
    ) -> Sequence[Manifest]:
        """Return the manifests about another one, by digest, those after a digest."""
        query = (
            sa.select(t.manifests)
            .where(
                t.manifests.c.repository == repository,
                t.manifests.c.subject == subject,
                t.manifests.c.pending.in_({"", attempt}),
                t.manifests.c.digest > after,
            )
            .group_by(t.manifests.c.digest)
            .order_by(t.manifests.c.digest)
            .limit(limit)
        )
        return [_manifest(row) for row in self._sql.execute(query).mappings()]

    def has_blob(self, repository: str, digest: str, attempt: str) -> bool:
        """Say whether a blob is linked where the attempt sees it."""
        return self.told_at(repository, digest, attempt) is not None

    def is_linked(self, repository: str, digest: str, pending: str) -> bool:
        """Say whether there is this very link."""
        query = sa.select(t.blob_links.c.digest).where(
            t.blob_links.c.repository == repository,
            t.blob_links.c.digest == digest,
            t.blob_links.c.pending == pending,
        )
        return self._sql.execute(query).first() is not None

    def link_blob(self, repository: str, digest: str, pending: str, now: datetime) -> None:
        """Make a blob visible, or note that somebody was told that it is."""
        row = {"repository": repository, "digest": digest, "pending": pending}
        upsert(self._sql, t.blob_links, {**row, "told_at": now.timestamp()})

    def told_at(self, repository: str, digest: str, attempt: str) -> datetime | None:
        """Return when somebody was last told that a blob is here; none: it is not."""
        query = sa.select(sa.func.max(t.blob_links.c.told_at)).where(
            t.blob_links.c.repository == repository,
            t.blob_links.c.digest == digest,
            t.blob_links.c.pending.in_({"", attempt}),
        )
        at = self._sql.execute(query).scalar()
        return datetime.fromtimestamp(at, UTC) if at is not None else None

    def unlink_blob(self, repository: str, digest: str) -> bool:
        """Take a blob out of a repository; false: it was not in it."""
        query = sa.delete(t.blob_links).where(
            t.blob_links.c.repository == repository,
            t.blob_links.c.digest == digest,
            t.blob_links.c.pending == "",
        )
        return self._sql.execute(query).rowcount > 0

    def manifest_of(self, repository: str, part: str) -> str | None:
        """Return the digest of a manifest that cannot do without a part, if there is one."""
        query = sa.select(t.parts.c.digest).where(
            t.parts.c.repository == repository, t.parts.c.part == part
        )
        return self._sql.execute(query.limit(1)).scalar()

    def set_tag(self, repository: str, tag: str, digest: str) -> None:
        """Move a tag."""
        upsert(self._sql, t.tags, {"repository": repository, "tag": tag, "digest": digest})

    def is_tagged(self, repository: str, digest: str) -> bool:
        """Say whether a tag names a manifest."""
        query = sa.select(t.tags.c.tag).where(
            t.tags.c.repository == repository, t.tags.c.digest == digest
        )
        return self._sql.execute(query.limit(1)).first() is not None

    def tags(self, repository: str, after: str, limit: int) -> Sequence[str]:
        """Return the tags of a repository after one, sorted by their bytes."""
        query = sa.select(t.tags.c.tag).where(
            t.tags.c.repository == repository, t.tags.c.tag > after
        )
        return list(self._sql.execute(query.order_by(t.tags.c.tag).limit(limit)).scalars())

    def repositories(self, after: str, limit: int) -> Sequence[str]:
        """Return the repositories in which everybody sees something, after one, sorted."""
        name = t.manifests.c.repository
        query = sa.select(name).where(name > after, t.manifests.c.pending == "")
        return list(self._sql.execute(query.distinct().order_by(name).limit(limit)).scalars())

    def has_repository(self, repository: str) -> bool:
        """Say whether everybody who may sees something in a repository."""
        found = sa.select(t.manifests.c.digest).where(
            t.manifests.c.repository == repository, t.manifests.c.pending == ""
        )
        return self._sql.execute(found.limit(1)).first() is not None

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
        links, mine = t.blob_links.c, t.manifests.c
        of_it = (mine.repository == repository, mine.pending == pending)
        digests = list(self._sql.execute(sa.select(mine.digest).where(*of_it)).scalars())
        self._sql.execute(sa.delete(t.manifests).where(*of_it))
        where = (links.repository == repository, links.pending == pending)
        self._sql.execute(sa.delete(t.blob_links).where(*where))
        self._forget_parts(repository, digests)

    def idle_links(self, before: datetime, after: Link, limit: int) -> Sequence[Link]:
        """Return links, beyond one, that no manifest needs and nobody was told of since."""
        key = (t.blob_links.c.repository, t.blob_links.c.digest)
        query = sa.select(*key).where(sa.tuple_(*key) > sa.tuple_(*after), *_idle(before))
        return [Link._make(row) for row in self._sql.execute(query.order_by(*key).limit(limit))]

    def forget_links(self, before: datetime, links: Sequence[Link]) -> int:
        """Drop those of the links of which that is still so."""
        key = (t.blob_links.c.repository, t.blob_links.c.digest)
        query = sa.delete(t.blob_links).where(sa.tuple_(*key).in_(links), *_idle(before))
        return self._sql.execute(query).rowcount

    def unlinked(self, digests: Sequence[str]) -> Sequence[str]:
        """Return those that no repository links, and nothing that was mirrored."""
        columns = (t.blob_links.c.digest, mirrored.c.digest)
        queries = [sa.select(column).where(column.in_(digests)) for column in columns]
        needed = {digest for query in queries for digest in self._sql.execute(query).scalars()}
        return [digest for digest in digests if digest not in needed]

    def _forget_parts(self, repository: str, digests: Sequence[str]) -> None:
        """Drop the parts of those manifests that nobody has any more, pending or not."""
        manifest, part = t.manifests.c, t.parts.c
        kept = sa.exists().where(
            manifest.repository == part.repository, manifest.digest == part.digest
        )
        for digest in digests:
            gone = (part.repository == repository, part.digest == digest, ~kept)
            self._sql.execute(sa.delete(t.parts).where(*gone))


def _idle(before: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of a link that no manifest of its repository needs."""
    link, part = t.blob_links.c, t.parts.c
    needed = sa.exists().where(part.repository == link.repository, part.part == link.digest)
    return link.pending == "", link.told_at < before.timestamp(), ~needed


def _manifest(row: sa.RowMapping) -> Manifest:
    return Manifest(
        repository=row["repository"],
        digest=row["digest"],
        media_type=row["media_type"],
        body=row["body"],
        subject=row["subject"],
    )
