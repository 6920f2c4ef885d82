"""Logins at other registries: tried for real, locked, shown to nobody."""

import base64
import sqlite3
from pathlib import Path

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.registry import NewRegistry
from tests.integration.mirror.conftest import attempt, blob, login, manifest
from tests.integration.mirror.others import PASSWORD, USER, Strange
from tests.integration.router.stage import House, TinyImage
from tests.sight import written_below

Real = tuple[str, TinyImage]


def slug(error: "pytest.ExceptionInfo[PierheadError]") -> str:
    return error.value.problem.slug


async def test_a_login_that_works_is_kept_and_its_secret_is_nowhere(
    house: House, real: Real
) -> None:
    host, image = real
    added = await login(house, host, image="me/base:1")

    assert added.login == "basic"
    assert added.pulled == f"{host}/me/base:1"
    (listed,) = (await house.owner.registries()).registries
    assert listed == added.registry
    assert (listed.username, listed.project, listed.plain_http) == (USER, None, True)
    everything = written_below(house.data)
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode())
    for form in (PASSWORD.encode(), base64.b64encode(PASSWORD.encode()), pair):
        assert form not in everything
    builder = await attempt(house)
    assert (await builder.get(manifest("me/base", "1", host))).content == image.manifest


async def test_a_wrong_password_is_refused_and_nothing_is_kept(house: House, real: Real) -> None:
    host, _ = real
    with pytest.raises(PierheadError) as refused:
        await login(house, host, secret="incorrect horse")

    assert slug(refused) == "upstream-refused"
    assert f"{host} does not accept the login of {USER}" in str(refused.value)
    assert "incorrect" not in str(refused.value.problem)
    assert (await house.owner.registries()).registries == ()


async def test_a_registry_with_a_token_service_is_logged_in_to_by_it(
    house: House, strange: Strange
) -> None:
    strange.needs_login = True
    assert (await login(house, strange.host)).login == "token"
    assert strange.asked("GET", "/token") == [
        "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    ]

    with pytest.raises(PierheadError) as refused:
        await login(house, strange.host, secret="no")
    assert slug(refused) == "upstream-refused"
    assert len((await house.owner.registries()).registries) == 1


async def test_an_image_that_the_login_may_not_pull_is_said(house: House, real: Real) -> None:
    host, _ = real
    with pytest.raises(PierheadError) as refused:
        await login(house, host, image="me/nothing")
    assert slug(refused) == "not-found"
    assert f"{host} has no {host}/me/nothing:latest (asked as {USER})" in str(refused.value)


async def test_a_registry_that_does_not_answer_is_not_kept(house: House) -> None:
    with pytest.raises(PierheadError) as refused:
        await login(house, "127.0.0.1:1")
    assert slug(refused) == "upstream-refused"
    assert "127.0.0.1:1 cannot be reached" in str(refused.value)


@pytest.mark.parametrize(
    "terms",
    [
        {"username": None},
        {"secret": None},
        {"image": "UPPER"},
        {"ca": "no certificate", "plain_http": False},
    ],
)
async def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    house: House, terms: dict[str, object]
) -> None:
    with pytest.raises(PierheadError) as refused:
        await login(house, "127.0.0.1:1", **terms)
    assert slug(refused) == "invalid-document"


async def test_the_own_registry_needs_no_login(house: House) -> None:
    with pytest.raises(PierheadError, match="own registry"):
        await login(house, house.host)


async def test_only_the_owner_sees_or_changes_logins(house: House, real: Real) -> None:
    host, _ = real
    await login(house, host)
    other = house.client(await house.project_token("web"))
    wanted = NewRegistry(host=host)
    for call in (other.registries(), other.add_registry(wanted), other.remove_registry(host)):
        with pytest.raises(PierheadError) as refused:
            await call
        assert slug(refused) == "not-allowed"


async def test_a_login_for_one_project_is_of_no_use_to_another(house: House, real: Real) -> None:
    host, image = real
    await house.project_token("web")
    await login(house, host, project="web")
    web, shop = await attempt(house), await attempt(house, "shop", "laptop")

    assert (await web.get(manifest("me/base", "1", host))).status_code == 200
    assert (await web.get(blob("me/base", digest(image), host))).content == image.layer
    for address in (manifest("me/base", "1", host), blob("me/base", digest(image), host)):
        assert (await shop.get(address)).status_code == 403


async def test_after_its_login_is_gone_nothing_of_a_registry_is_given(
    house: House, real: Real
) -> None:
    host, image = real
    await login(house, host)
    web = await attempt(house)
    assert (await web.get(blob("me/base", digest(image), host))).content == image.layer

    gone = await house.owner.remove_registry(host)
    assert gone.host == host
    for address in (manifest("me/base", "1", host), blob("me/base", digest(image), host)):
        assert (await web.get(address)).status_code == 403
    with pytest.raises(PierheadError) as refused:
        await house.owner.remove_registry(host)
    assert slug(refused) == "not-found"
    with sqlite3.connect(house.data / "router.db") as database:
        assert database.execute("SELECT count(*) FROM router_logins").fetchone() == (0,)


async def test_a_login_under_another_key_has_to_be_given_again(house: House, real: Real) -> None:
    host, _ = real
    await login(house, host)
    with sqlite3.connect(house.data / "router.db") as database:
        database.execute("UPDATE router_logins SET locked = x'00112233445566778899aabbccddeeff'")
    web = await attempt(house)
    answer = await web.get(manifest("me/base", "1", host))
    assert answer.status_code == 503
    assert "registries add" in answer.json()["errors"][0]["detail"]["hint"]


def digest(image: TinyImage) -> str:
    return digest_of(image.layer)


def test_the_password_is_not_in_the_repr_of_a_request(tmp_path: Path) -> None:
    shown = repr(NewRegistry(host="ghcr.io", username=USER, secret=PASSWORD))
    assert PASSWORD not in shown
