"""What every store keeps of other registries, asked of the one on SQLite and of the simulator's."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pierhead.router.domain.upstream import Image, Login
from pierhead.router.ports.mirror import Mirrored
from pierhead.router.ports.store import Ledger, Store
from tests.contract.test_store import NOW, open_store

DIGEST = "sha256:" + "1" * 64
IMAGE = Image(host="a.io", name="me/app", reference="1")
BLOB = replace(IMAGE, reference=DIGEST)
FOUND = Mirrored(digest=DIGEST, media_type="x/y", body=b"{}", checked_at=NOW)
ALL = Login(
    id="l_1", host="a.io", project="", username="me", plain_http=True, ca="pem", added_at=NOW
)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(request.param, tmp_path) as opened:
        yield opened


async def test_a_login_comes_back_as_it_was_stored_and_replaces_the_one_before(
    store: Store,
) -> None:
    shop = replace(ALL, id="l_2", project="shop", username=None, ca=None, plain_http=False)
    await store.write(lambda ledger: ledger.save_login(ALL, {"secret": b"box"}))
    await store.write(lambda ledger: ledger.save_login(shop, {}))
    assert await store.read(lambda ledger: list(ledger.logins())) == [ALL, shop]
    assert await store.read(lambda ledger: dict(ledger.locked_login("l_1"))) == {"secret": b"box"}
    assert await store.read(lambda ledger: dict(ledger.locked_login("l_2"))) == {}

    newer = replace(ALL, id="l_3")
    await store.write(lambda ledger: ledger.save_login(newer, {"secret": b"other"}))
    assert await store.read(lambda ledger: list(ledger.logins())) == [newer, shop]
    assert await store.read(lambda ledger: dict(ledger.locked_login("l_1"))) == {}


async def test_with_a_login_goes_what_was_seen_under_it(store: Store) -> None:
    def see(ledger: Ledger) -> None:
        ledger.save_login(ALL, {})
        for scope in ("l_1", ""):
            ledger.keep_mirrored(scope, IMAGE, FOUND)
            ledger.keep_mirrored_size(scope, BLOB, 7, NOW)
            ledger.keep_mirrored_blob(scope, "a.io", "me/app", DIGEST, NOW)

    await store.write(see)
    assert await store.write(lambda ledger: ledger.drop_login("a.io", "")) == ALL
    assert await store.write(lambda ledger: ledger.drop_login("a.io", "")) is None
    where = ("a.io", "me/app", DIGEST)
    assert await store.read(lambda ledger: ledger.mirrored("l_1", IMAGE)) is None
    assert await store.read(lambda ledger: ledger.mirrored_blob("l_1", *where)) is None
    assert await store.read(lambda ledger: ledger.mirrored_size("l_1", BLOB)) is None
    assert await store.read(lambda ledger: ledger.mirrored_size("", BLOB)) == 7
    assert await store.read(lambda ledger: ledger.mirrored("", IMAGE)) == FOUND
    assert await store.read(lambda ledger: ledger.mirrored_blob("", *where)) == NOW


async def test_what_was_seen_is_of_its_scope_and_place_alone(store: Store) -> None:
    def see(ledger: Ledger) -> None:
        ledger.keep_mirrored("l_1", IMAGE, replace(FOUND, body=b"old"))
        ledger.keep_mirrored("l_1", IMAGE, FOUND)
        ledger.keep_mirrored_blob("l_1", "a.io", "me/app", DIGEST, NOW)

    await store.write(see)
    assert await store.read(lambda ledger: ledger.mirrored("l_1", IMAGE)) == FOUND
    for scope, image in (
        ("", IMAGE),
        ("l_1", replace(IMAGE, host="b.io")),
        ("l_1", replace(IMAGE, reference=DIGEST)),
    ):
        found = await store.read(lambda ledger, s=scope, i=image: ledger.mirrored(s, i))  # type: ignore[misc]
        assert found is None
    assert await store.read(lambda ledger: ledger.was_mirrored("a.io", "me/app", DIGEST))
    assert not await store.read(lambda ledger: ledger.was_mirrored("b.io", "me/app", DIGEST))
    assert not await store.read(lambda ledger: ledger.was_mirrored("a.io", "me/other", DIGEST))


async def test_what_was_mirrored_is_needed_until_it_was_not_used_for_a_while(store: Store) -> None:
    later = NOW + timedelta(days=3)

    def see(ledger: Ledger) -> None:
        ledger.keep_mirrored("", IMAGE, FOUND)
        ledger.keep_mirrored("", replace(IMAGE, reference="2"), replace(FOUND, checked_at=later))
        ledger.keep_mirrored_blob("", "a.io", "me/app", DIGEST, NOW)

    await store.write(see)
    assert not await store.read(lambda ledger: ledger.unlinked([DIGEST]))
    assert await store.write(lambda ledger: ledger.forget_mirrored(NOW, 5)) == 0
    assert await store.write(lambda ledger: ledger.forget_mirrored(later, 5)) == 1
    assert await store.read(lambda ledger: ledger.unlinked([DIGEST])) == [DIGEST]
    assert await store.read(lambda ledger: ledger.mirrored("", IMAGE)) is None
    newer = replace(IMAGE, reference="2")
    assert await store.read(lambda ledger: ledger.mirrored("", newer)) is not None


async def test_of_what_manifests_say_of_a_blob_the_most_counts_for_as_long_as_it_is_said(
    store: Store,
) -> None:
    later = NOW + timedelta(days=3)
    for size, now in ((5, NOW), (9, NOW), (2**63 - 1, NOW), (6, later)):
        await store.write(lambda led, s=size, n=now: led.keep_mirrored_size("", BLOB, s, n))  # type: ignore[misc]
    assert await store.read(lambda ledger: ledger.mirrored_size("", BLOB)) == 2**63 - 1
    for scope, blob in (("l_1", BLOB), ("", replace(BLOB, name="me/other"))):
        found = await store.read(lambda ledger, s=scope, b=blob: ledger.mirrored_size(s, b))  # type: ignore[misc]
        assert found is None
    assert await store.write(lambda ledger: ledger.forget_mirrored(later, 5)) == 0
    after = later + timedelta(seconds=1)
    assert await store.write(lambda ledger: ledger.forget_mirrored(after, 5)) == 1
    assert await store.read(lambda ledger: ledger.mirrored_size("", BLOB)) is None
