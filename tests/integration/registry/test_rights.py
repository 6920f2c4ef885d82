"""Who sees and may do what: an attempt, its rival, other projects, runners and nobody."""

import base64
import json

import httpx
import pytest

from tests.integration.registry.conftest import Served, push_blob, push_image, push_manifest
from tests.integration.registry.image import MANIFEST, descriptor, digest_of, image

SHOP, BLOG = "acme/shop", "acme/blog"


def code(answer: httpx.Response) -> str:
    return str(answer.json()["errors"][0]["code"])


async def test_whoever_has_no_token_is_told_where_to_get_one(served: Served) -> None:
    async with httpx.AsyncClient(timeout=60) as nobody:
        answer = await nobody.get(f"http://{served.host}/v2/")
    assert answer.status_code == 401
    realm = f'Bearer realm="http://{served.host}/v2/token",service="pierhead"'
    assert answer.headers["www-authenticate"] == realm
    assert code(answer) == "UNAUTHORIZED"


async def pass_of(served: Served, who: str, *scopes: str) -> str:
    """Ask as a client that logs in: with a password, for some scopes."""
    async with httpx.AsyncClient(auth=("me", who), timeout=60) as basic:
        answer = await basic.get(f"http://{served.host}/v2/token", params={"scope": [*scopes]})
        assert answer.status_code == 200
        token: str = answer.json()["token"]
        return token


async def test_the_token_call_gives_a_pass_for_a_good_password(served: Served) -> None:
    async with httpx.AsyncClient(auth=("me", "shop"), timeout=60) as basic:
        answer = await basic.get(f"http://{served.host}/v2/token?service=pierhead&scope=x")
        assert answer.json()["expires_in"] == 300
        token = answer.json()["token"]
        claims, box = (base64.urlsafe_b64decode(part + "==") for part in token[4:].split("."))
        assert claims.isdigit()
        assert b"shop" not in box
        assert answer.headers["cache-control"] == "no-store"
        async with served.client(token) as narrow:
            assert (await narrow.get("/v2/")).status_code == 200
            assert (await narrow.get("/v2/token")).status_code == 401  # it renews nothing
        assert (await basic.get(f"http://{served.host}/v2/")).status_code == 200
    async with httpx.AsyncClient(auth=("me", "wrong"), timeout=60) as wrong:
        assert (await wrong.get(f"http://{served.host}/v2/token")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", f"{SHOP}/manifests/v1", f"repository:{SHOP}:pull"),
        ("HEAD", f"{SHOP}/manifests/v1", f"repository:{SHOP}:pull"),
        ("HEAD", f"{SHOP}/blobs/sha256:00", f"repository:{SHOP}:pull,push"),
        ("POST", f"{SHOP}/blobs/uploads/", f"repository:{SHOP}:pull,push"),
        ("PUT", f"{SHOP}/manifests/v1", f"repository:{SHOP}:pull,push"),
        ("DELETE", f"{SHOP}/manifests/v1", f"repository:{SHOP}:delete"),
    ],
)
async def test_the_challenge_says_what_the_token_has_to_be_good_for(
    served: Served, method: str, path: str, scope: str
) -> None:
    async with httpx.AsyncClient(timeout=60) as nobody:
        answer = await nobody.request(method, f"http://{served.host}/v2/{path}")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].endswith(f',scope="{scope}"')
        odd = await nobody.get(f'http://{served.host}/v2/a%22,b="c/manifests/v1')
        assert "scope" not in odd.headers["www-authenticate"]


async def test_one_token_is_good_for_all_that_its_holder_may_in_both_scopes(
    served: Served,
) -> None:
    scopes = {"scope": [f"repository:{SHOP}:pull", f"repository:{BLOG}:pull,push"]}
    async with served.client("shop") as shop:
        await push_blob(shop, SHOP, b"layer")
    async with httpx.AsyncClient(auth=("me", "owner"), timeout=60) as basic:
        answer = await basic.get(f"http://{served.host}/v2/token", params=scopes)
    async with served.client(answer.json()["token"]) as client:
        query = {"mount": digest_of(b"layer"), "from": SHOP}
        mounted = await client.post(f"/v2/{BLOG}/blobs/uploads/", params=query)
        assert mounted.status_code == 201
    async with httpx.AsyncClient(auth=("me", "blog"), timeout=60) as basic:
        answer = await basic.get(f"http://{served.host}/v2/token", params=scopes)
    async with served.client(answer.json()["token"]) as client:
        assert (await client.get(f"/v2/{SHOP}/blobs/{digest_of(b'layer')}")).status_code == 404


async def test_a_pass_is_good_for_its_scopes_alone(served: Served) -> None:
    async with served.client("shop") as shop:
        await push_image(shop, SHOP, mine := image(), to="v1")
    layer, pull = digest_of(mine.layer), f"repository:{SHOP}:pull"
    tries = {
        "pull": ("GET", f"/v2/{SHOP}/manifests/v1"),
        "list": ("GET", f"/v2/{SHOP}/tags/list"),
        "push": ("POST", f"/v2/{SHOP}/blobs/uploads/"),
        "delete": ("DELETE", f"/v2/{SHOP}/manifests/nothing"),
        "other": ("GET", f"/v2/{BLOG}/tags/list"),
        "catalog": ("GET", "/v2/_catalog"),
    }

    async def opens(*scopes: str) -> set[str]:
        async with served.client(await pass_of(served, "owner", *scopes)) as narrow:
            answers = {what: await narrow.request(*one) for what, one in tries.items()}
        for answer in answers.values():
            refused = answer.status_code == 401
            assert refused == ("www-authenticate" in answer.headers)
        return {what for what, answer in answers.items() if answer.status_code != 401}

    assert await opens() == set()
    assert await opens(pull) == {"pull", "list"}
    assert await opens(f"repository:{SHOP}:push") == {"push"}
    assert await opens(f"repository:{SHOP}:*") == {"pull", "list", "push", "delete"}
    assert await opens(f"{pull} repository:{BLOG}:pull") == {"pull", "list", "other"}
    assert await opens("registry:catalog:*") == {"catalog"}
    async with served.client(await pass_of(served, "owner", f"repository:{BLOG}:push")) as narrow:
        query = {"mount": layer, "from": SHOP}
        answer = await narrow.post(f"/v2/{BLOG}/blobs/uploads/", params=query)
        assert answer.status_code == 202  # it may not read there, so it has to send the blob


async def test_a_pass_adds_nothing_to_what_its_holder_may(served: Served) -> None:
    async with served.client(await pass_of(served, "blog", f"repository:{SHOP}:*")) as narrow:
        seen = await narrow.get(f"/v2/{SHOP}/tags/list")
        pushed = await narrow.post(f"/v2/{SHOP}/blobs/uploads/")
    assert (seen.status_code, pushed.status_code) == (404, 403)


async def test_what_was_changed_in_a_pass_opens_nothing(served: Served) -> None:
    good = await pass_of(served, "owner", f"repository:{SHOP}:pull")
    claims, _, box = good.removeprefix("phs_").partition(".")
    said = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
    wider = base64.urlsafe_b64encode(said.replace(b"pull", b"pull,push")).rstrip(b"=").decode()
    later = base64.urlsafe_b64encode(b"9" + said).rstrip(b"=").decode()
    async with httpx.AsyncClient(timeout=60) as client:
        for token in (
            f"phs_{wider}.{box}",
            f"phs_{later}.{box}",
            f"phs_{claims}.{box[:-4]}",
            f"phs_{claims}",
            "phs_",
            "phs_.",
            "phs_!.?",
        ):
            headers = {"Authorization": f"Bearer {token}"}
            answer = await client.get(f"http://{served.host}/v2/", headers=headers)
            assert (answer.status_code, code(answer)) == (401, "UNAUTHORIZED"), token


async def test_the_token_call_takes_a_form_too(served: Served) -> None:
    url = f"http://{served.host}/v2/token"
    form = {"grant_type": "password", "username": "me", "password": "shop", "service": "pierhead"}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = (await client.post(url, data=form)).json()
        assert (answer["token_type"], answer["expires_in"]) == ("Bearer", 300)
        async with served.client(answer["access_token"]) as narrow:
            assert (await narrow.get("/v2/")).status_code == 200
            assert (await narrow.get(f"/v2/{SHOP}/tags/list")).status_code == 401
        offline = (await client.post(url, data={**form, "access_type": "offline"})).json()
        again = {"grant_type": "refresh_token", "refresh_token": offline["refresh_token"]}
        wide = {**again, "scope": f"repository:{SHOP}:pull"}
        renewed = (await client.post(url, data=wide)).json()["access_token"]
        async with served.client(renewed) as narrow:
            assert (await narrow.get(f"/v2/{SHOP}/tags/list")).status_code == 200
        for wrong in ({**form, "password": "x"}, {}, {"grant_type": "refresh_token"}):
            refused = await client.post(url, data=wrong)
            assert (refused.status_code, code(refused)) == (401, "UNAUTHORIZED")
        odd = await client.post(url, content="password=\xff\u2028".encode())
        assert odd.status_code == 401
        assert (await client.post(url, content=bytes(20_000))).status_code == 413


async def test_a_runners_credential_opens_nothing(served: Served) -> None:
    async with served.client("runner") as client:
        for path in ("/v2/", f"/v2/{SHOP}/tags/list"):
            answer = await client.get(path)
            assert (answer.status_code, code(answer)) == (403, "DENIED")


async def test_what_an_attempt_pushes_only_it_sees_until_it_is_published(served: Served) -> None:
    mine = image()
    async with served.client("attempt") as attempt:
        await push_image(attempt, SHOP, mine)
        assert (await attempt.head(f"/v2/{SHOP}/manifests/{mine.digest}")).status_code == 200
    blob, manifest = (
        f"/v2/{SHOP}/blobs/{digest_of(mine.layer)}",
        f"/v2/{SHOP}/manifests/{mine.digest}",
    )
    for who in ("rival", "shop", "blog", "owner"):
        async with served.client(who) as other:
            assert (await other.head(blob)).status_code == 404, who
            assert (await other.head(manifest)).status_code == 404, who

    await served.store.write(lambda ledger: ledger.publish(SHOP, "b_one.1"))

    for who, status in {"rival": 200, "shop": 200, "owner": 200, "blog": 404}.items():
        async with served.client(who) as other:
            assert (await other.head(blob)).status_code == status, who
            assert (await other.head(manifest)).status_code == status, who


async def test_what_was_not_accepted_is_forgotten(served: Served) -> None:
    async with served.client("attempt") as attempt:
        await push_image(attempt, SHOP, image())
        await served.store.write(lambda ledger: ledger.forget(SHOP, "b_one.1"))
        assert (await attempt.head(f"/v2/{SHOP}/manifests/{image().digest}")).status_code == 404
        assert (
            await attempt.head(f"/v2/{SHOP}/blobs/{digest_of(image().layer)}")
        ).status_code == 404


async def test_an_attempt_cannot_move_a_tag(served: Served) -> None:
    async with served.client("attempt") as attempt:
        await push_image(attempt, SHOP, image())
        answer = await push_manifest(attempt, SHOP, image().manifest, to="latest")
        assert (answer.status_code, code(answer)) == (403, "DENIED")
        assert (await attempt.delete(f"/v2/{SHOP}/manifests/{image().digest}")).status_code == 403


@pytest.mark.parametrize("who", ["ended", "blog", "runner"])
async def test_who_has_no_right_pushes_nothing(served: Served, who: str) -> None:
    async with served.client(who) as client:
        answer = await push_blob(client, SHOP, b"mine")
        assert (answer.status_code, code(answer)) == (403, "DENIED")
        answer = await push_manifest(client, SHOP, image().manifest, to=image().digest)
        assert (answer.status_code, code(answer)) == (403, "DENIED")
    async with served.client("shop") as shop:
        assert (await shop.head(f"/v2/{SHOP}/blobs/{digest_of(b'mine')}")).status_code == 404


async def test_a_digest_of_another_project_is_unknown_although_it_is_on_the_disk(
    served: Served,
) -> None:
    secret = b"of the shop alone"
    async with served.client("shop") as shop, served.client("blog") as blog:
        await push_blob(shop, SHOP, secret)
        for repository in (SHOP, BLOG):
            answer = await blog.get(f"/v2/{repository}/blobs/{digest_of(secret)}")
            assert answer.status_code == 404
        refused = await blog.post(
            f"/v2/{BLOG}/blobs/uploads/", params={"mount": digest_of(secret), "from": SHOP}
        )
        assert refused.status_code == 202, "it has to be uploaded"
        assert (await blog.head(f"/v2/{BLOG}/blobs/{digest_of(secret)}")).status_code == 404
        assert (await push_blob(blog, BLOG, secret)).status_code == 201
        assert (await blog.get(f"/v2/{BLOG}/blobs/{digest_of(secret)}")).content == secret


async def test_who_may_pull_both_mounts_without_an_upload(served: Served) -> None:
    async with served.client("owner") as owner:
        await push_blob(owner, SHOP, b"base")
        query = {"mount": digest_of(b"base"), "from": SHOP}
        mounted = await owner.post(f"/v2/{BLOG}/blobs/uploads/", params=query)
        assert mounted.status_code == 201
        assert (await owner.get(mounted.headers["location"])).content == b"base"


async def test_an_upload_is_of_no_use_in_another_repository_or_attempt(served: Served) -> None:
    async with served.client("attempt") as attempt, served.client("blog") as blog:
        begun = await attempt.post(f"/v2/{SHOP}/blobs/uploads/")
        upload = begun.headers["docker-upload-uuid"]
        await attempt.patch(begun.headers["location"], content=b"mine")
        for who, repository in (("rival", SHOP), ("shop", SHOP), ("owner", BLOG)):
            async with served.client(who) as other:
                answer = await other.get(f"/v2/{repository}/blobs/uploads/{upload}")
                assert (answer.status_code, code(answer)) == (404, "BLOB_UPLOAD_UNKNOWN"), who
        taken = await blog.put(
            f"/v2/{BLOG}/blobs/uploads/{upload}", params={"digest": digest_of(b"mine")}
        )
        assert taken.status_code == 404


async def test_the_catalog_shows_what_the_token_may_know_of(served: Served) -> None:
    async with served.client("owner") as owner:
        for repository in (BLOG, SHOP, "zoo"):
            await push_image(owner, repository, image())
        first = await owner.get("/v2/_catalog", params={"n": "2"})
        assert first.json() == {"repositories": [BLOG, SHOP]}
        following = first.headers["link"].partition("<")[2].partition(">")[0]
        rest = await owner.get(following)
        assert rest.json() == {"repositories": ["zoo"]}
        assert "link" not in rest.headers
    for who in ("shop", "attempt", "rival", "ended"):
        async with served.client(who) as client:
            assert (await client.get("/v2/_catalog")).json() == {"repositories": [SHOP]}, who
            beyond = await client.get("/v2/_catalog", params={"last": SHOP})
            assert beyond.json() == {"repositories": []}
    async with served.client("runner") as runner:
        assert (await runner.get("/v2/_catalog")).status_code == 403


async def test_of_another_project_what_is_there_and_what_is_not_look_the_same(
    served: Served,
) -> None:
    mine = image()
    async with served.client("shop") as shop:
        await push_image(shop, SHOP, mine, to="v1")
    layer, nothing = digest_of(mine.layer), digest_of(b"nothing")
    calls = [
        ("GET", "manifests/v1", "manifests/v2"),
        ("HEAD", f"manifests/{mine.digest}", f"manifests/{nothing}"),
        ("GET", f"blobs/{layer}", f"blobs/{nothing}"),
        ("GET", f"referrers/{mine.digest}", f"referrers/{nothing}"),
        ("DELETE", f"blobs/{layer}", f"blobs/{nothing}"),
        ("DELETE", "manifests/v1", "manifests/v2"),
        ("PUT", "manifests/v1", "manifests/v2"),
    ]
    async with served.client("blog") as blog:
        for method, there, not_there in calls:
            answers = [
                await blog.request(method, f"/v2/{repository}/{path}")
                for repository, path in ((SHOP, there), (SHOP, not_there), ("acme/none", there))
            ]
            told = {
                (answer.status_code, answer.text.replace(SHOP, "R").replace("acme/none", "R"))
                for answer in answers
            }
            assert len(told) == 1, told
        tags = [await blog.get(f"/v2/{name}/tags/list") for name in (SHOP, "acme/none")]
        assert {answer.status_code for answer in tags} == {404}


async def test_what_an_attempt_attached_only_it_sees(served: Served) -> None:
    subject = f"/v2/{SHOP}/referrers/{image().digest}"
    about = json.dumps(
        {**json.loads(image().manifest), "subject": descriptor(image().manifest, MANIFEST)}
    ).encode()
    async with served.client("attempt") as attempt, served.client("shop") as shop:
        await push_image(attempt, SHOP, image())
        await push_manifest(attempt, SHOP, about, to=digest_of(about))
        assert len((await attempt.get(subject)).json()["manifests"]) == 1
        assert (await shop.get(subject)).json()["manifests"] == []
        await served.store.write(lambda ledger: ledger.publish(SHOP, "b_one.1"))
        assert len((await shop.get(subject)).json()["manifests"]) == 1
