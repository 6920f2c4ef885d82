"""Where a registry sends to, for tokens and for layers: only where the owner let logins go."""

from collections.abc import AsyncIterator

import httpx
import pytest

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import PierheadError
from tests.integration.mirror.conftest import attempt, blob, login, manifest
from tests.integration.mirror.others import Strange, strange_registry
from tests.integration.router.stage import House


@pytest.fixture
async def other() -> AsyncIterator[Strange]:
    """Another port of the same machine."""
    async with strange_registry() as running:
        yield running


@pytest.fixture
async def known(house: House, strange: Strange) -> Strange:
    """A registry that was added with a login, without TLS."""
    strange.needs_login = True
    await login(house, strange.host)
    strange.seen.clear()
    return strange


def said(answer: httpx.Response) -> tuple[int, str, str]:
    (error,) = answer.json()["errors"]
    return answer.status_code, error["message"], error["detail"]["hint"]


async def asked(house: House, registry: Strange) -> tuple[int, str, str]:
    """Ask for an image that nothing is known of, and return how that is refused."""
    return said(await (await attempt(house)).get(manifest("me/base", "latest", registry.host)))


async def test_a_login_goes_to_no_other_port_until_the_owner_names_that(
    house: House, known: Strange, other: Strange
) -> None:
    known.realm = f"http://{other.host}/token"
    # It still has a token of before; another image needs another one.
    known.images["me/other"] = known.images["me/base"]
    web = await attempt(house)
    status, message, hint = said(await web.get(manifest("me/other", "latest", known.host)))
    where = f"{known.host} has its tokens given out at {other.host} by plain HTTP"
    assert (status, message) == (403, f"{where}, which is not allowed there")
    assert hint == f"the owner can allow it: pierhead registries add {other.host} --plain-http"
    assert other.seen == []

    await login(house, other.host, username=None, secret=None)
    assert (await web.get(manifest("me/other", "latest", known.host))).status_code == 200
    assert other.asked("GET", "/token")[-1].startswith("Basic ")


@pytest.mark.parametrize("realm", ["http://93.184.216.34:5002/token", "http://tokens.example/"])
async def test_a_login_never_goes_in_the_clear_where_nobody_said_so(
    house: House, known: Strange, realm: str
) -> None:
    known.realm = realm
    status, message, hint = await asked(house, known)
    assert status == 403
    assert "by plain HTTP" in message
    assert hint.endswith(f"{realm.split('/')[2]} --plain-http")


async def test_over_tls_it_goes_to_no_other_port_of_a_private_network_either(
    house: House, known: Strange, other: Strange
) -> None:
    known.realm = f"https://{other.host}/token"
    status, message, hint = await asked(house, known)
    assert (status, message) == (403, "127.0.0.1 is in a private network")
    assert hint == f"the owner can allow it: pierhead registries add {other.host}"
    assert other.seen == []


@pytest.mark.parametrize(
    "realm", ["file:///etc/passwd", "http://", "/token", "http://a@b/", "http://[/"]
)
async def test_a_token_is_asked_for_at_no_address_that_is_none(
    house: House, known: Strange, realm: str
) -> None:
    known.realm = realm
    status, message, _ = await asked(house, known)
    where = f"{known.host} has its tokens given out at no address that can be used"
    assert (status, message) == (503, where)


async def test_layers_come_from_no_other_port_until_the_owner_names_that(
    house: House, known: Strange, other: Strange
) -> None:
    other.images["me/base"] = known.images["me/base"]
    known.elsewhere = f"http://{other.host}/stored/"
    web = await attempt(house)
    address = blob("me/base", digest_of(known.images["me/base"].layer), known.host)
    status, message, hint = said(await web.get(address))
    assert status == 403
    assert message.startswith(f"{known.host} has what is asked for at {other.host} by plain HTTP")
    assert hint.endswith(f"pierhead registries add {other.host} --plain-http")
    assert other.seen == []

    await login(house, other.host, username=None, secret=None)
    assert (await web.get(address)).content == known.images["me/base"].layer


@pytest.mark.parametrize("status", [404, 500, 302])
async def test_that_no_token_could_be_had_is_not_told_of_the_image(
    house: House, known: Strange, status: int
) -> None:
    known.token_status = status
    got, message, hint = await asked(house, known)
    where = f"no token for {known.host} could be had from {known.host}"
    assert (got, message) == (503, f"{where}, which answers with status {status}")
    assert hint == f"ask whoever runs {known.host}; is its name right?"


async def test_what_gives_out_tokens_alone_can_be_named_but_not_logged_in_to(
    house: House, other: Strange
) -> None:
    other.no_registry = True
    added = await login(house, other.host, username=None, secret=None)
    assert added.login == "open"
    with pytest.raises(PierheadError, match="is no registry: it has no /v2/") as refused:
        await login(house, other.host)
    assert refused.value.problem.hint == "is the name right, and its port?"


async def test_a_registry_that_lets_nobody_in_says_so_when_it_is_added(
    house: House, strange: Strange
) -> None:
    strange.needs_login = True
    with pytest.raises(PierheadError, match="lets nobody in without a login") as refused:
        await login(house, strange.host, username=None, secret=None)
    assert (refused.value.problem.hint or "").endswith(f"add {strange.host} --username NAME")
