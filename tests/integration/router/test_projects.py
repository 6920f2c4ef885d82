"""Projects, environments and tokens, as their owner and others meet them over HTTP."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from pierhead.protocol.errors import Invalid, PierheadError, Refused, TokenRefused
from pierhead.protocol.project import NewEnvironment, NewProject, NewToken
from tests.integration.router.stage import House, push_image, tiny_image

MINUTE, DAY = 60.0, 86_400.0


def wanted(key: str = "k1", **terms: Any) -> NewToken:
    return NewToken(**{"key": key, "name": "ci", "project": "web", **terms})


@pytest.fixture
async def web(house: House) -> House:
    await house.owner.add_project(NewProject(name="web"))
    return house


async def test_a_token_is_shown_once_and_listed_by_how_it_ends(web: House) -> None:
    made = await web.owner.add_token(wanted(expires_in_seconds=90 * 86_400))
    listed = (await web.owner.tokens("web")).tokens

    assert [view.id for view in listed] == [made.view.id]
    assert listed[0].ends_with == made.token[-4:]
    assert listed[0].created_by == "owner"
    assert listed[0].expires_at is not None
    body = (await web.http(web.owner_token).get("/api/tokens", params={"project": "web"})).text
    assert made.token not in body


async def test_twenty_requests_for_one_token_at_once_make_one(web: House) -> None:
    made = await asyncio.gather(*(web.owner.add_token(wanted()) for _ in range(20)))

    assert len({one.token for one in made}) == 1
    assert len((await web.owner.tokens("web")).tokens) == 1


async def test_the_key_of_a_token_does_not_stand_for_another(web: House) -> None:
    await web.owner.add_token(wanted())
    with pytest.raises(Refused) as caught:
        await web.owner.add_token(wanted(ability="read"))
    assert caught.value.problem.slug == "key-reused"


async def test_a_token_is_not_shown_again_after_a_while_nor_when_it_is_revoked(web: House) -> None:
    first = await web.owner.add_token(wanted())
    await web.owner.revoke_token(first.view.id)
    with pytest.raises(Refused) as revoked:
        await web.owner.add_token(wanted())
    await web.owner.add_token(wanted("k2"))
    web.clock.advance(15 * MINUTE)
    with pytest.raises(Refused) as late:
        await web.owner.add_token(wanted("k2"))
    assert {error.value.problem.slug for error in (revoked, late)} == {"key-reused"}


async def test_expired_revoked_unknown_and_weak_tokens_are_told_apart(web: House) -> None:
    short = (await web.owner.add_token(wanted("short", expires_in_seconds=60))).token
    ended = await web.owner.add_token(wanted("ended"))
    reader = (await web.owner.add_token(wanted("reader", ability="read"))).token
    await web.owner.revoke_token(ended.view.id)
    build = await web.submit()
    web.clock.advance(MINUTE + 1)

    async def ask(token: str | None, method: str = "GET", path: str = "/api/builds") -> Any:
        answered = await web.http(token).request(method, path, json={})
        document = answered.json()
        return answered.status_code, document["type"].rpartition(":")[2], document["hint"]

    again = "ask the owner for a new one: pierhead projects tokens add web"
    assert await ask(short) == (401, "token-expired", again)
    assert await ask(ended.token) == (401, "unauthenticated", again)
    login = "log in with a token of this control plane: pierhead login URL"
    assert await ask("php_" + "x" * 43) == (401, "unauthenticated", login)
    assert await ask(None) == (
        401,
        "unauthenticated",
        "pierhead login URL, or set PIERHEAD_TOKEN",
    )
    status, slug, hint = await ask(reader, "POST", f"/api/builds/{build.id}/cancel")
    assert (status, slug) == (403, "not-allowed")
    assert hint.endswith("pierhead projects tokens add web --ability write")


async def test_a_token_works_as_bearer_and_as_the_password_of_basic(web: House) -> None:
    token = (await web.owner.add_token(wanted())).token
    for headers, auth in (
        ({"Authorization": f"Bearer {token}"}, None),
        ({"Authorization": f"bearer {token}"}, None),
        ({}, httpx.BasicAuth("anybody", token)),
    ):
        async with httpx.AsyncClient(
            base_url=web.url, headers=headers, auth=auth, timeout=60
        ) as http:
            assert (await http.get("/api/tokens/self")).json()["name"] == "ci"


async def test_the_last_use_is_seen_at_once_and_stored_by_the_minute(web: House) -> None:
    made = await web.owner.add_token(wanted())

    async def used() -> str | None:
        return (await web.owner.tokens("web")).tokens[0].used_at

    assert await used() is None
    await web.client(made.token).builds()
    first = await used()
    assert first is not None
    await web.router.identity.store_uses()
    assert made.view.id not in web.router.identity.uses
    assert await used() == first
    web.clock.advance(5 * MINUTE)
    assert (await web.client(made.token).own_token()).used_at == await used()
    later = await used()
    assert later is not None
    assert later > first


async def test_a_token_that_reads_pulls_and_looks_and_changes_nothing(web: House) -> None:
    build = await web.submit()
    reader = (await web.owner.add_token(wanted(ability="read"))).token
    image = tiny_image()
    await push_image(web.http(web.owner_token), "web", image, "latest")

    assert (await web.client(reader).build(build.id)).id == build.id
    async with web.http(reader) as http:
        assert (await http.get("/v2/web/manifests/latest")).status_code == 200
        assert (await http.post("/v2/web/blobs/uploads/")).status_code == 403
        assert (await http.delete("/v2/web/manifests/latest")).status_code == 403
        assert (await http.put("/v2/web/manifests/x", content=image.manifest)).status_code == 403
        assert (await http.post(f"/api/builds/{build.id}/cancel", json={})).status_code == 403


async def test_a_token_of_one_environment_sees_and_makes_only_its_builds(web: House) -> None:
    production = await web.submit()
    preview = await web.submit(environment="preview")
    token = (await web.owner.add_token(wanted(environment="preview"))).token
    mine = web.client(token)

    assert [view.id for view in (await mine.builds()).builds] == [preview.id]
    assert (await mine.build("@")).id == preview.id
    for build_id in (production.id, "b_nothing"):
        with pytest.raises(Refused) as unseen:
            await mine.build(build_id)
        assert unseen.value.problem.slug == "not-found"
        assert unseen.value.problem.detail == f"there is no build {build_id}"
    async with web.http(token) as http:
        context = msgspec.to_builtins(await web.upload())
        body = {
            "project": "web",
            "plan": {},
            "context": context,
        }
        assert (await http.post("/api/builds", json=body)).status_code == 403
        answered = await http.post("/api/builds", json={**body, "environment": "preview"})
        assert answered.status_code == 200
        assert (await http.post("/v2/web/blobs/uploads/")).status_code == 403


async def test_an_environment_that_a_build_names_first_is_a_preview(web: House) -> None:
    await web.submit(environment="pr-7")
    await web.owner.add_environment(NewEnvironment(project="web", name="staging"))
    page = (await web.owner.environments("web")).environments

    found = {one.name: (one.preview, one.builds) for one in page}
    assert found == {"pr-7": (True, 1), "production": (False, 0), "staging": (False, 0)}


async def test_an_environment_stays_while_its_builds_run_and_takes_its_tokens_along(
    web: House,
) -> None:
    build = await web.submit(environment="pr-7", if_nobody="wait")
    token = (await web.owner.add_token(wanted(environment="pr-7"))).token
    with pytest.raises(Refused) as busy:
        await web.owner.remove_environment("web", "pr-7")
    await web.http(web.owner_token).post(f"/api/builds/{build.id}/cancel", json={})
    await web.owner.remove_environment("web", "pr-7")

    assert busy.value.problem.slug == "in-use"
    with pytest.raises(TokenRefused):
        await web.client(token).builds()
    with pytest.raises(Invalid):
        await web.owner.remove_environment("web", "production")


async def test_a_project_goes_with_a_plan_and_only_when_nothing_runs(web: House) -> None:
    build = await web.submit(if_nobody="wait")
    token = (await web.owner.add_token(wanted())).token
    await push_image(web.http(web.owner_token), "web", tiny_image(), "latest")
    with pytest.raises(Refused) as busy:
        await web.owner.remove_project("web")
    await web.http(web.owner_token).post(f"/api/builds/{build.id}/cancel", json={})
    plan = await web.owner.remove_project("web", plan=True)
    still = await web.owner.project("web")
    gone = await web.owner.remove_project("web")

    assert busy.value.problem.slug == "in-use"
    assert (plan.builds, plan.images, plan.tags, plan.tokens, plan.done) == (1, 1, 1, 1, False)
    assert still.builds == 1
    assert gone.done
    with pytest.raises(Refused):
        await web.owner.project("web")
    with pytest.raises(TokenRefused):
        await web.client(token).builds()
    answered = await web.http(web.owner_token).get("/v2/web/manifests/latest")
    assert answered.status_code == 404
    # The same name begins anew: what was once its token stays nobody's.
    await web.owner.add_project(NewProject(name="web"))
    fresh = (await web.owner.add_token(wanted())).token
    assert fresh != token


async def test_a_removal_that_was_cut_short_goes_on(web: House) -> None:
    def begin(ledger: Any) -> None:
        project = ledger.project("web")
        ledger.save_project(
            type(project)(name="web", trusted=True, created_at=project.created_at, removing=True)
        )

    await web.router.projects.store.write(begin)
    with pytest.raises(Refused) as refused:
        await web.submit()
    await web.router.projects.finish_removals()

    assert refused.value.problem.slug == "in-use"
    assert (await web.owner.projects()).projects == ()


async def test_lists_come_in_pages(web: House) -> None:
    for name in ("a", "b", "c"):
        await web.owner.add_project(NewProject(name=name))
        await web.owner.add_environment(NewEnvironment(project="web", name=name))
        await web.owner.add_token(wanted(name))
    names, after = [], None
    while True:
        page = await web.owner.projects(limit=2, after=after)
        names += [one.name for one in page.projects]
        if (after := page.next) is None:
            break
    first = await web.owner.tokens("web", limit=2)
    rest = await web.owner.tokens("web", limit=2, after=first.next)
    environments = await web.owner.environments("web", limit=3)

    assert names == ["a", "b", "c", "web"]
    assert len({view.id for view in (*first.tokens, *rest.tokens)}) == 3
    assert environments.next == "c"
    for limit in (0, 201):
        with pytest.raises(Invalid):
            await web.owner.projects(limit=limit)


async def test_an_owners_token_is_followed_by_another_without_a_gap(house: House) -> None:
    old = await house.owner.own_token()
    new = await house.owner.add_token(NewToken(key="n", name="owner", ability="root"))
    follower = house.client(new.token)
    await follower.revoke_token(old.id)
    await follower.revoke_token(old.id)

    with pytest.raises(TokenRefused):
        await house.owner.own_token()
    with pytest.raises(PierheadError) as last:
        await follower.revoke_token(new.view.id)
    assert "the last token of the owner" in str(last.value)


@pytest.mark.parametrize(
    "terms",
    [
        {"project": None, "ability": "write"},
        {"project": "web", "ability": "root"},
        {"project": None, "ability": "root", "environment": "production"},
    ],
)
async def test_a_token_is_an_owners_or_a_projects(web: House, terms: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await web.owner.add_token(wanted(**terms))


async def test_a_token_of_one_project_learns_nothing_of_builds_elsewhere(house: House) -> None:
    runner = await house.runner()
    await house.leased(runner)
    token = await house.project_token("shop")

    able = await house.client(token).capabilities()
    assert [one.builds for one in able.runners] == [()]
    assert [len(one.builds) for one in (await house.owner.capabilities()).runners] == [1]


async def typed(house: House, *words: str) -> tuple[int, str, str]:
    """Run the command as the owner does on the control plane's own machine."""
    mine = {"PIERHEAD_CONFIG": str(house.config), "PIERHEAD_URL": house.url}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("pierhead"),
        *words,
        env={**os.environ, **mine},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_rotate_leaves_a_token_that_opens_wherever_the_old_one_was(house: House) -> None:
    code, _, said = await typed(house, "owner-token", "rotate")

    file = house.config / "token"
    fresh = file.read_text().strip()
    assert code == 0, said
    assert fresh != house.owner_token
    assert file.stat().st_mode & 0o777 == 0o600
    assert fresh not in said
    login = json.loads((house.config / "docker/config.json").read_text())["auths"]
    passwords = [base64.b64decode(one["auth"]).decode() for one in login.values()]
    assert passwords == [f"owner:{fresh}"]
    assert (await house.client(fresh).own_token()).name == "owner"
    with pytest.raises(TokenRefused):
        await house.owner.own_token()


async def test_tokens_are_made_listed_and_ended_by_the_command(web: House) -> None:
    code, out, said = await typed(web, "projects", "tokens", "add", "web", "--expires", "90d")
    token = out.strip()
    _, listed, _ = await typed(web, "projects", "tokens", "ls", "web")
    token_id = said.split()[0]
    ended, _, _ = await typed(web, "projects", "tokens", "revoke", token_id)

    assert (code, ended) == (0, 0), said
    assert token.startswith("php_")
    assert token_id in listed
    assert token[-4:] in listed
    assert token not in listed
    with pytest.raises(TokenRefused):
        await web.client(token).builds()


async def test_a_project_is_removed_by_the_command_only_when_it_was_told_to(web: House) -> None:
    planned, out, _ = await typed(web, "projects", "remove", "web", "--plan")
    unasked, _, said = await typed(web, "projects", "remove", "web")
    still = await web.owner.project("web")
    removed, _, _ = await typed(web, "projects", "remove", "web", "--yes")

    assert (planned, unasked, removed) == (0, 2, 0)
    assert out.startswith("would remove web: 0 builds, 0 images, 0 tags, 1 environment, 0 tokens")
    assert "hint: pierhead projects remove web --yes" in said
    assert still.name == "web"
    assert (await web.owner.projects()).projects == ()
