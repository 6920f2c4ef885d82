"""Base images through the router: kept by digest, asked for anew by tag, never wrong."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from pierhead.protocol.digest import digest_of
from pierhead.router.domain.upstream import STALE_MAX
from tests.acceptance.stage import eventually
from tests.integration.mirror.conftest import attempt, blob, login, manifest
from tests.integration.mirror.others import Strange, strange_registry
from tests.integration.router.stage import House, TinyImage, push_image, tiny_image


@pytest.fixture
async def open_to_all(house: House, strange: Strange) -> Strange:
    """A registry in a private network that the owner allowed, and that wants no login."""
    await login(house, strange.host, username=None, secret=None)
    strange.seen.clear()
    return strange


@pytest.fixture
async def other() -> AsyncIterator[Strange]:
    async with strange_registry() as running:
        yield running


async def pulled(http: httpx.AsyncClient, host: str, image: TinyImage, name: str) -> None:
    """Pull an image as an engine does."""
    said = await http.get(manifest(name, "latest", host))
    assert said.content == image.manifest
    assert said.headers["docker-content-digest"] == image.digest
    for part in (image.config, image.layer):
        assert (await http.get(blob(name, digest_of(part), host))).content == part


async def no_upload(house: House) -> None:
    """Wait until nothing is kept of what came in: a moment after the visitor heard of the end."""

    async def nothing_is_left() -> bool:
        return not list((house.data / "uploads").iterdir())

    await eventually(nothing_is_left, within=60)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["errors"][0]["code"]


async def test_an_image_is_fetched_once_and_then_only_asked_about(
    house: House, open_to_all: Strange
) -> None:
    image = open_to_all.images["me/base"]
    web = await attempt(house)
    for _ in range(3):
        await pulled(web, open_to_all.host, image, "me/base")
    assert len(open_to_all.asked("GET", "/manifests/")) == 2  # the first without a token
    assert len(open_to_all.asked("HEAD", "/manifests/")) == 2
    assert len(open_to_all.asked("GET", "/blobs/")) == 2
    assert len(open_to_all.asked("GET", "/token")) == 1


async def test_a_tag_that_moved_is_what_it_is_now(house: House, open_to_all: Strange) -> None:
    web = await attempt(house)
    await pulled(web, open_to_all.host, open_to_all.images["me/base"], "me/base")
    old = open_to_all.images["me/base"]
    open_to_all.images["me/base"] = tiny_image("newer")
    await pulled(web, open_to_all.host, open_to_all.images["me/base"], "me/base")
    by_digest = await web.get(manifest("me/base", old.digest, open_to_all.host))
    assert by_digest.content == old.manifest


async def test_ten_at_the_same_time_fetch_it_once(house: House, open_to_all: Strange) -> None:
    image = open_to_all.images["me/base"]
    web = await attempt(house)
    open_to_all.slow = asyncio.Event()
    address = blob("me/base", digest_of(image.layer), open_to_all.host)
    asking = [asyncio.create_task(web.get(address)) for _ in range(10)]
    async with asyncio.timeout(60):
        await open_to_all.waited.wait()
    open_to_all.slow.set()
    answers = await asyncio.gather(*asking)
    assert [answer.content for answer in answers] == [image.layer] * 10
    assert len([one for one in open_to_all.asked("GET", "/blobs/") if one]) == 1


async def test_it_is_given_while_its_registry_is_down_and_that_is_said(
    house: House, open_to_all: Strange
) -> None:
    image = open_to_all.images["me/base"]
    web = house.http(house.owner_token)
    await pulled(web, open_to_all.host, image, "me/base")
    open_to_all.silent = True
    await pulled(web, open_to_all.host, image, "me/base")
    said = await web.get(manifest("me/base", "latest", open_to_all.host))
    assert said.headers["pierhead-stale-since"]
    unknown = await web.get(manifest("me/base", "other", open_to_all.host))
    assert code(unknown) == (503, "UNAVAILABLE")

    house.clock.advance(STALE_MAX.total_seconds() + 60)
    too_old = await web.get(manifest("me/base", "latest", open_to_all.host))
    assert code(too_old) == (503, "UNAVAILABLE")


async def test_what_is_gone_upstream_is_not_given_any_more(
    house: House, open_to_all: Strange
) -> None:
    web = await attempt(house)
    await pulled(web, open_to_all.host, open_to_all.images["me/base"], "me/base")
    open_to_all.images.clear()
    answer = await web.get(manifest("me/base", "latest", open_to_all.host))
    assert code(answer) == (404, "MANIFEST_UNKNOWN")


async def test_a_lie_about_a_manifest_is_neither_given_nor_kept(
    house: House, open_to_all: Strange
) -> None:
    web, image = await attempt(house), open_to_all.images["me/base"]
    open_to_all.said_digest = "sha256:" + "0" * 64
    answer = await web.get(manifest("me/base", "latest", open_to_all.host))
    assert code(answer) == (400, "DIGEST_INVALID")
    open_to_all.said_digest = None
    await pulled(web, open_to_all.host, image, "me/base")


async def test_a_spoilt_layer_is_never_whole_and_not_kept(
    house: House, open_to_all: Strange
) -> None:
    web, image = await attempt(house), open_to_all.images["me/base"]
    digest = digest_of(image.layer)
    spoilt = image.layer[:-1] + b"!"
    open_to_all.spoilt[digest] = spoilt
    with pytest.raises(httpx.RemoteProtocolError):
        await web.get(blob("me/base", digest, open_to_all.host))
    await no_upload(house)
    assert not list((house.data / "blobs" / "sha256").glob("*/*"))

    open_to_all.spoilt.clear()
    assert (await web.get(blob("me/base", digest, open_to_all.host))).content == image.layer


async def test_a_layer_that_breaks_off_is_not_kept_and_comes_whole_the_next_time(
    house: House, open_to_all: Strange
) -> None:
    web, image = await attempt(house), open_to_all.images["me/base"]
    address = blob("me/base", digest_of(image.layer), open_to_all.host)
    open_to_all.cut_after = 5000
    with pytest.raises(httpx.RemoteProtocolError):
        await web.get(address)
    await no_upload(house)
    open_to_all.cut_after = None
    part = await web.get(address, headers={"Range": "bytes=4000-"})
    assert (part.status_code, part.content) == (206, image.layer[4000:])


async def test_another_host_does_not_see_the_login(
    house: House, strange: Strange, other: Strange
) -> None:
    strange.needs_login = True
    strange.elsewhere = f"http://{other.host}/stored/"
    other.images["me/base"] = strange.images["me/base"]
    await login(house, strange.host)
    await login(house, other.host, username=None, secret=None)
    other.seen.clear()
    web = await attempt(house)
    await pulled(web, strange.host, strange.images["me/base"], "me/base")
    assert {path for _, path, _ in other.seen} == {
        f"/stored/{digest_of(part)}"
        for part in (other.images["me/base"].config, other.images["me/base"].layer)
    }
    assert {said for _, _, said in other.seen} == {""}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7", "169.254.169.254", "10.1.2.3:5000", "localhost:5000"]
)
async def test_builds_get_nowhere_in_a_private_network(house: House, host: str) -> None:
    web = await attempt(house)
    answer = await web.get(manifest("me/base", "latest", host))
    assert code(answer) == (403, "DENIED")
    assert "registries add" in answer.json()["errors"][0]["detail"]["hint"]


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.2:7/x/",
        "http://169.254.169.254/x/",
        "file:///etc/",
        "http://a@b/",
        "http://[",
        "http://[v1.x]/",
        "http://a:99999/",
    ],
)
async def test_a_registry_cannot_send_builds_there_either(
    house: House, open_to_all: Strange, target: str
) -> None:
    web = await attempt(house)
    open_to_all.elsewhere = target
    digest = digest_of(open_to_all.images["me/base"].layer)
    answer = await web.get(blob("me/base", digest, open_to_all.host))
    assert answer.status_code in {403, 503}


async def test_a_token_service_in_a_private_network_gets_no_login(
    house: House, strange: Strange
) -> None:
    await login(house, strange.host)
    strange.seen.clear()
    strange.realm = "http://127.0.0.9:7/token"
    web = await attempt(house)
    answer = await web.get(manifest("me/base", "latest", strange.host))
    assert code(answer) == (403, "DENIED")


@pytest.mark.parametrize("realm", ["http://[", "http://[v1.x]/", "http://a:99999/", "token"])
async def test_a_token_service_that_is_at_no_address_is_not_asked(
    house: House, strange: Strange, realm: str
) -> None:
    await login(house, strange.host)
    strange.realm = realm
    web = await attempt(house)
    answer = await web.get(manifest("me/base", "latest", strange.host))
    assert code(answer) == (503, "UNAVAILABLE")


async def test_only_builds_that_run_get_them(house: House, open_to_all: Strange) -> None:
    address = manifest("me/base", "latest", open_to_all.host)
    runner = await house.runner("idle")
    for token in (await house.project_token("web"), runner.credential):
        assert (await house.http(token).get(address)).status_code == 403
    assert (await house.http(None).get(address)).status_code == 401
    assert (await house.http(house.owner_token).get(address)).status_code == 200
    web = await attempt(house)
    assert (await web.get(address)).status_code == 200
    (build,) = (await house.owner.builds()).builds
    await house.owner.remove_runner("desktop")
    assert (await web.get(address)).status_code in {401, 403}, build.id


async def test_what_the_token_call_gives_is_for_the_own_registry(
    house: House, open_to_all: Strange
) -> None:
    auth = ("me", house.owner_token)
    wanted = {"scope": "repository:me/base:pull", "service": "pierhead"}
    given = await house.http(None).get("/v2/token", params=wanted, auth=auth)
    http = house.http(given.json()["token"])
    assert code(await http.get("/v2/me/base/manifests/latest")) == (404, "MANIFEST_UNKNOWN")
    answer = await http.get(manifest("me/base", "latest", open_to_all.host))
    assert code(answer) == (403, "DENIED")


async def test_nobody_learns_what_another_project_has_by_a_registry_of_his_own(
    house: House, open_to_all: Strange
) -> None:
    secret = tiny_image("of the shop alone")
    await house.project_token("shop")
    await push_image(house.http(house.owner_token), "shop", secret, "1")
    # The registry says that it has the layer, and sends something else.
    open_to_all.images["me/trick"] = secret
    open_to_all.spoilt[digest_of(secret.layer)] = secret.layer[:-1] + b"!"
    web = await attempt(house)
    head = await web.head(blob("me/trick", digest_of(secret.layer), open_to_all.host))
    assert head.status_code == 200  # the registry's own word
    with pytest.raises(httpx.RemoteProtocolError):
        await web.get(blob("me/trick", digest_of(secret.layer), open_to_all.host))


async def test_the_own_registry_is_itself_under_its_name(house: House) -> None:
    image = tiny_image("own")
    await house.project_token("web")
    await push_image(house.http(house.owner_token), "web", image, "1")
    web = await attempt(house)
    assert (await web.get(manifest("web", "1", house.host))).content == image.manifest
    address = blob("web", digest_of(image.layer), house.host)
    assert (await web.get(address)).content == image.layer
    assert (await web.get(manifest("shop", "1", house.host))).status_code == 404


async def test_what_is_mirrored_stays_while_it_is_used_and_goes_when_not(
    house: House, open_to_all: Strange
) -> None:
    image = open_to_all.images["me/base"]
    web = await attempt(house)
    await pulled(web, open_to_all.host, image, "me/base")
    house.clock.advance(13 * 86_400)
    await house.router.garbage.once()
    layer = digest_of(image.layer)
    assert await house.router.garbage.blobs.size(layer) is not None
    house.clock.advance(2 * 86_400)
    await house.router.garbage.once()
    assert await house.router.garbage.blobs.size(layer) is None
