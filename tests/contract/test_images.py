"""What every store keeps of images, asked of the one on SQLite and of the simulator's."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from pierhead.protocol.result import Envelope
from pierhead.router.domain.build import State
from pierhead.router.ports.images import Link, Manifest
from pierhead.router.ports.store import Ledger, Store
from tests.contract.test_store import NOW, build, open_store

T = TypeVar("T")
ONE, TWO, THREE = ("sha256:" + letter * 64 for letter in "123")


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(request.param, tmp_path) as opened:
        yield opened


async def told(store: Store, operation: Callable[[Ledger], T]) -> T:
    return await store.read(operation)


def manifest(digest: str, *parts: str, subject: str | None = None) -> Manifest:
    return Manifest(
        repository="web", digest=digest, media_type="x/y", body=b"{}", parts=parts, subject=subject
    )


async def test_a_part_is_needed_until_the_last_manifest_with_it_is_gone(store: Store) -> None:
    def push(ledger: Ledger) -> None:
        ledger.add_manifest(manifest(ONE, THREE, THREE), "")
        ledger.add_manifest(manifest(ONE, THREE), "b_1.1")
        ledger.add_manifest(manifest(TWO, THREE), "b_2.1")

    await store.write(push)
    assert await told(store, lambda ledger: ledger.manifest_of("web", THREE)) in {ONE, TWO}
    assert await told(store, lambda ledger: ledger.manifest_of("api", THREE)) is None
    assert await store.write(lambda ledger: ledger.delete_manifest("web", ONE))
    assert not await store.write(lambda ledger: ledger.delete_manifest("web", ONE))
    await store.write(lambda ledger: ledger.forget("web", "b_2.1"))
    assert await told(store, lambda ledger: ledger.manifest_of("web", THREE)) == ONE
    await store.write(lambda ledger: ledger.forget("web", "b_1.1"))
    assert await told(store, lambda ledger: ledger.manifest_of("web", THREE)) is None


async def test_a_deleted_manifest_takes_its_tags_along_and_a_tag_nothing(store: Store) -> None:
    def push(ledger: Ledger) -> None:
        ledger.add_manifest(manifest(ONE), "")
        for tag in ("a", "b", "c"):
            ledger.set_tag("web", tag, ONE)

    await store.write(push)
    assert await store.write(lambda ledger: ledger.delete_manifest("web", "a"))
    assert await told(store, lambda ledger: list(ledger.tags("web", "", 9))) == ["b", "c"]
    assert await told(store, lambda ledger: list(ledger.tags("web", "b", 9))) == ["c"]
    assert await told(store, lambda ledger: list(ledger.tags("web", "", 1))) == ["b"]
    assert await store.write(lambda ledger: ledger.delete_manifest("web", ONE))
    assert await told(store, lambda ledger: list(ledger.tags("web", "", 9))) == []
    assert await told(store, lambda ledger: ledger.manifest("web", "b", "")) is None


async def test_referrers_are_those_that_the_asker_sees_sorted(store: Store) -> None:
    def push(ledger: Ledger) -> None:
        ledger.add_manifest(manifest(TWO, subject=ONE), "b_1.1")
        ledger.add_manifest(manifest(THREE, subject=ONE), "")
        ledger.add_manifest(manifest(THREE, subject=ONE), "b_1.1")

    def found(ledger: Ledger, attempt: str, after: str, limit: int) -> list[str]:
        return [one.digest for one in ledger.referrers("web", ONE, attempt, after, limit)]

    await store.write(push)
    assert await told(store, lambda ledger: found(ledger, "", "", 9)) == [THREE]
    assert await told(store, lambda ledger: found(ledger, "b_1.1", "", 9)) == [TWO, THREE]
    assert await told(store, lambda ledger: found(ledger, "b_1.1", "", 1)) == [TWO]
    assert await told(store, lambda ledger: found(ledger, "b_1.1", TWO, 9)) == [THREE]
    assert await told(store, lambda ledger: list(ledger.referrers("web", TWO, "", "", 9))) == []


async def test_repositories_are_those_with_something_that_everybody_sees(store: Store) -> None:
    def push(ledger: Ledger) -> None:
        for name, pending in (("b", ""), ("a", ""), ("c", "b_1.1")):
            ledger.add_manifest(replace(manifest(ONE), repository=name), pending)
        ledger.add_manifest(replace(manifest(TWO), repository="a"), "")

    await store.write(push)
    assert await told(store, lambda ledger: list(ledger.repositories("", 9))) == ["a", "b"]
    assert await told(store, lambda ledger: list(ledger.repositories("a", 9))) == ["b"]
    assert await told(store, lambda ledger: list(ledger.repositories("", 1))) == ["a"]
    assert await told(store, lambda ledger: ledger.has_repository("a"))
    assert not await told(store, lambda ledger: ledger.has_repository("c"))


async def test_a_link_remembers_when_somebody_was_told_of_it(store: Store) -> None:
    later = NOW + timedelta(hours=1)

    def link(ledger: Ledger) -> None:
        ledger.link_blob("web", ONE, "", NOW)
        ledger.link_blob("web", ONE, "b_1.1", later)

    await store.write(link)
    assert await told(store, lambda ledger: ledger.told_at("web", ONE, "")) == NOW
    assert await told(store, lambda ledger: ledger.told_at("web", ONE, "b_1.1")) == later
    assert await told(store, lambda ledger: ledger.told_at("api", ONE, "")) is None
    assert await told(store, lambda ledger: ledger.is_linked("web", ONE, "b_1.1"))
    assert not await told(store, lambda ledger: ledger.is_linked("web", ONE, "b_1.2"))
    assert await store.write(lambda ledger: ledger.unlink_blob("web", ONE))
    assert not await store.write(lambda ledger: ledger.unlink_blob("web", ONE))
    assert await told(store, lambda ledger: ledger.told_at("web", ONE, "b_1.1")) == later


async def test_only_links_that_are_old_and_of_no_manifest_are_forgotten(store: Store) -> None:
    def fill(ledger: Ledger) -> None:
        for repository, digest, pending, hours in (
            ("web", ONE, "", 0),  # of a manifest
            ("api", ONE, "", 0),  # of none: that one is in another repository
            ("web", TWO, "", 2),  # young
            ("web", THREE, "b_1.1", 0),  # pending
        ):
            ledger.link_blob(repository, digest, pending, NOW + timedelta(hours=hours))
        ledger.add_manifest(manifest(TWO, ONE), "")

    before = NOW + timedelta(hours=1)
    await store.write(fill)
    idle = await told(store, lambda ledger: list(ledger.idle_links(before, Link(), 9)))
    assert idle == [Link("api", ONE)]
    every = [Link(name, digest) for name in ("web", "api") for digest in (ONE, TWO, THREE)]
    assert await store.write(lambda ledger: ledger.forget_links(before, every)) == 1
    assert await store.write(lambda ledger: ledger.forget_links(before, every)) == 0
    assert not await told(store, lambda ledger: ledger.has_blob("api", ONE, ""))
    rest = [ONE, TWO, THREE, "sha256:" + "4" * 64]
    assert await told(store, lambda ledger: list(ledger.unlinked(rest))) == rest[3:]


async def test_links_are_looked_through_piece_by_piece_and_looked_at_again(store: Store) -> None:
    def fill(ledger: Ledger) -> None:
        for digest in (ONE, TWO, THREE):
            ledger.link_blob("web", digest, "", NOW)

    before = NOW + timedelta(hours=1)
    await store.write(fill)
    first = await told(store, lambda ledger: list(ledger.idle_links(before, Link(), 2)))
    assert first == [Link("web", ONE), Link("web", TWO)]
    assert await told(store, lambda ledger: list(ledger.idle_links(before, first[-1], 2))) == [
        Link("web", THREE)
    ]
    # Of one that somebody was told of meanwhile, nothing is forgotten.
    await store.write(lambda ledger: ledger.link_blob("web", ONE, "", before))
    assert await store.write(lambda ledger: ledger.forget_links(before, first)) == 1
    assert await told(store, lambda ledger: ledger.has_blob("web", ONE, ""))


async def test_builds_that_ended_are_found_by_their_end_and_deleted_whole(store: Store) -> None:
    def fill(ledger: Ledger) -> None:
        for number, hours in enumerate((3, 1, 2)):
            stored = build(f"b_{number}")
            over = replace(
                stored.build, state=State.FAILED, finished_at=NOW + timedelta(hours=hours)
            )
            ledger.add_build(replace(stored, build=over))
        ledger.add_build(build("b_open"))
        ledger.add_event("b_1", fence=0, log_size=0, kind="queued", payload=b"{}")

    await store.write(fill)
    late = NOW + timedelta(days=1)
    ended = await told(store, lambda ledger: [b.id for b in ledger.ended_before(late, 9)])
    assert ended == ["b_1", "b_2", "b_0"]
    early = NOW + timedelta(hours=2)
    assert await told(store, lambda ledger: [b.id for b in ledger.ended_before(early, 9)]) == [
        "b_1"
    ]
    await store.write(lambda ledger: ledger.delete_build("b_1"))
    assert await told(store, lambda ledger: ledger.build("b_1")) is None
    assert await told(store, lambda ledger: list(ledger.events("b_1", 0))) == []
    assert await told(store, lambda ledger: [b.id for b in ledger.ended_before(late, 1)]) == ["b_2"]


async def test_a_manifest_is_named_by_a_tag_another_manifest_or_a_build(store: Store) -> None:
    assert not await told(store, lambda ledger: ledger.is_named("web", ONE))
    await store.write(lambda ledger: ledger.set_tag("web", "a", ONE))
    assert await told(store, lambda ledger: ledger.is_named("web", ONE))
    await store.write(lambda ledger: ledger.add_manifest(manifest(THREE, TWO), ""))
    assert await told(store, lambda ledger: ledger.is_named("web", TWO))
    assert not await told(store, lambda ledger: ledger.is_named("web", THREE))
    envelope = Envelope(outcome="succeeded", manifest_digest=THREE)
    built = build("b_1", envelope=envelope, reference=f"host:1/web@{THREE}")
    await store.write(lambda ledger: ledger.add_build(built))
    assert await told(store, lambda ledger: ledger.is_named("web", THREE))
    assert not await told(store, lambda ledger: ledger.is_named("api", THREE))
