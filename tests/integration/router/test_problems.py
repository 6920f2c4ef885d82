"""Each problem type of the registry: the router can be brought to say it, and the client maps it.

A type without a scene here fails the first test: nothing is in the registry that nobody can meet.
"""

import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, Final

import httpx
import msgspec
import pytest
from starlette.routing import Route

from pierhead.protocol.archive import Kind
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import (
    IntegrityError,
    Invalid,
    LeaseLost,
    PierheadError,
    ProtocolMismatch,
    Refused,
    TokenRefused,
    Unavailable,
    error_for,
)
from pierhead.protocol.joincode import parse_join_code
from pierhead.protocol.lease import Release
from pierhead.protocol.objects import frame
from pierhead.protocol.plan import CONTEXT_BYTES_MAX, Plan, Submit
from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE, PROBLEM_TYPES, Problem, problem
from pierhead.protocol.runner import AddRunner
from pierhead.protocol.tree import CHUNK_BYTES, Entry, pages_of
from pierhead.protocol.version import FENCE_HEADER, OFFSET_HEADER
from pierhead.router.compose import open_router
from pierhead.router.config import Settings
from pierhead.router.domain.build import Build
from pierhead.router.domain.reach import reach
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.projects import StoredEnvironment
from pierhead.router.ports.store import Ledger
from pierhead.router.services import submit as submissions
from pierhead.router.services.projects import ENVIRONMENTS_MAX
from tests.integration.mirror.others import strange_registry
from tests.integration.router.stage import House, push_image, tiny_image

Scene = Callable[[House], Awaitable[httpx.Response]]
BROKEN: Final = {"outcome": "failed", "failure": {"cause": "command", "message": "no"}}


def owner(house: House) -> httpx.AsyncClient:
    return house.http(house.owner_token)


async def submit(house: House, **changes: Any) -> httpx.Response:
    context = msgspec.to_builtins(await house.upload())
    wanted = {"project": "web", "plan": {}, "context": context, **changes}
    return await owner(house).post("/api/builds", json=wanted)


async def invalid_document(house: House) -> httpx.Response:
    return await owner(house).post("/api/builds", content=b"{")


async def version_unsupported(house: House) -> httpx.Response:
    return await owner(house).get("/api/builds", headers={"Pierhead-Protocol": "99"})


async def unauthenticated(house: House) -> httpx.Response:
    return await house.http("pho_" + "x" * 43).get("/api/builds")


async def token_expired(house: House) -> httpx.Response:
    made = {"key": "k", "name": "ci", "project": "web", "expires_in_seconds": 60}
    await owner(house).post("/api/projects", json={"name": "web"})
    token = (await owner(house).post("/api/tokens", json=made)).json()["token"]
    house.clock.advance(61)
    return await house.http(token).get("/api/builds")


async def token_spent(house: House) -> httpx.Response:
    build, grant = await house.leased(await house.runner())
    headers, path = {FENCE_HEADER: "1"}, f"/api/builds/{build.id}"
    attempt = house.http(grant.token)
    (await attempt.post(f"{path}/result", json=BROKEN, headers=headers)).raise_for_status()
    house.clock.advance(16 * 60)
    return await attempt.post(f"{path}/result", json=BROKEN, headers=headers)


async def not_allowed(house: House) -> httpx.Response:
    runner = await house.runner()
    return await house.http(runner.credential).get("/api/builds")


async def not_found(house: House) -> httpx.Response:
    return await owner(house).get("/api/builds/b_none")


@asynccontextmanager
async def with_authority(house: House) -> AsyncIterator[httpx.AsyncClient]:
    """Open a control plane with an authority of its own, as its owner on its machine."""
    folder = house.data / "another"
    settings = Settings(data=folder, config=folder, here=False)
    folder.mkdir()
    reached = reach(host="0.0.0.0", port=7443, usual_address="127.0.0.1")
    async with open_router(settings, reached) as router:
        token = {"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
        asgi = httpx.ASGITransport(router.app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=asgi, base_url="http://ca", headers=token) as http:
            yield http


async def rotation_conflict(house: House) -> httpx.Response:
    async with with_authority(house) as http:
        return await http.delete("/api/ca/rotation")


async def stale_fingerprint(house: House) -> httpx.Response:
    async with with_authority(house) as http:
        return await http.post("/api/ca/replacement", json={"fingerprint": "0" * 64})


async def method_not_allowed(house: House) -> httpx.Response:
    return await owner(house).put("/api/builds")


async def lease_lost(house: House) -> httpx.Response:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    await house.client(grant.token).release(build.id, 1, Release(reason="draining"))
    await runner.acquire()
    path = f"/api/builds/{build.id}/heartbeat"
    return await house.http(grant.token).post(path, json={}, headers={FENCE_HEADER: "1"})


async def build_finished(house: House) -> httpx.Response:
    build, grant = await house.leased(await house.runner())
    headers, path = {FENCE_HEADER: "1"}, f"/api/builds/{build.id}/result"
    attempt = house.http(grant.token)
    (await attempt.post(path, json=BROKEN, headers=headers)).raise_for_status()
    other = {**BROKEN, "warnings": ["another result"]}
    return await attempt.post(path, json=other, headers=headers)


async def key_reused(house: House) -> httpx.Response:
    (await submit(house, key="k")).raise_for_status()
    return await submit(house, key="k", tags=["other"])


async def offset_mismatch(house: House) -> httpx.Response:
    build, grant = await house.leased(await house.runner())
    headers = {FENCE_HEADER: "1", OFFSET_HEADER: "7"}
    path = f"/api/builds/{build.id}/logs"
    return await house.http(grant.token).patch(path, content=b"gap", headers=headers)


async def in_use(house: House) -> httpx.Response:
    await house.runner()
    (await submit(house)).raise_for_status()
    return await owner(house).delete("/api/projects/web")


async def limit_reached(house: House) -> httpx.Response:
    await owner(house).post("/api/projects", json={"name": "web"})

    def fill(ledger: Ledger) -> None:
        for number in range(ENVIRONMENTS_MAX):
            ledger.save_environment(
                StoredEnvironment(
                    project="web", name=f"e{number}", preview=True, created_at=house.clock.now()
                )
            )

    await house.router.runners.store.write(fill)
    made = {"project": "web", "name": "one-more"}
    return await owner(house).post("/api/environments", json=made)


async def runner_name_taken(house: House) -> httpx.Response:
    await house.runner("desktop")
    return await owner(house).post("/api/runners", json={"name": "desktop"})


async def session_superseded(house: House) -> httpx.Response:
    runner = await house.runner()
    old = runner.request()
    await runner.start("desktop-life-2")
    document = msgspec.to_builtins(old)
    return await house.http(runner.credential).post("/api/runners/acquire", json=document)


async def join_code_used(house: House) -> httpx.Response:
    code = (await house.owner.add_runner(AddRunner(name="desktop"))).code
    secret = parse_join_code(code).secret
    anybody = house.http(None)
    for nonce in ("one machine", "another machine"):
        wanted = {"secret": secret, "nonce": nonce, "name": "desktop"}
        answered = await anybody.post("/api/runners/enroll", json=wanted)
    return answered


async def too_large(house: House) -> httpx.Response:
    return await owner(house).post("/api/builds", content=b" " * (2 * 1024 * 1024))


async def digest_mismatch(house: House) -> httpx.Response:
    wanted = {"project": "web", "digest": digest_of(b"another tree"), "pages": ""}
    return await owner(house).post("/api/contexts", json=wanted)


async def context_too_large(house: House) -> httpx.Response:
    count = CONTEXT_BYTES_MAX // CHUNK_BYTES + 1
    digests = sha256(b"a chunk that need not be there").digest() * count
    huge = Entry(b"huge", Kind.FILE, size=count * CHUNK_BYTES, digests=digests)
    tree = pages_of([huge])
    await house.owner.send_objects("web", frame(tree.pages))
    pages = b64encode(sha256(tree.pages[0]).digest()).decode()
    wanted = {"project": "web", "digest": tree.tree.digest(), "pages": pages}
    return await owner(house).post("/api/contexts", json=wanted)


async def result_mismatch(house: House) -> httpx.Response:
    build, grant = await house.leased(await house.runner())
    image = tiny_image()
    await push_image(house.http(grant.token), "web", image)
    forged = msgspec.to_builtins(image.envelope(config_digest=digest_of(b"another")))
    path = f"/api/builds/{build.id}/result"
    return await house.http(grant.token).post(path, json=forged, headers={FENCE_HEADER: "1"})


async def plan_unsupported(house: House) -> httpx.Response:
    return await submit(house, plan={"scan": "gate"})


async def secret_argument(house: House) -> httpx.Response:
    return await submit(house, plan={"build_args": {"NPM_TOKEN": "abc"}})


async def no_eligible_runner(house: House) -> httpx.Response:
    build = (await submit(house, if_nobody="wait")).json()["id"]
    return await owner(house).post(f"/api/builds/{build}/run-here")


async def rate_limited(house: House) -> httpx.Response:
    await house.runner()
    context = await house.upload()
    now = house.clock.now()

    def fill(ledger: Ledger) -> None:
        for number in range(submissions.QUEUE_MAX):
            ledger.add_build(
                StoredBuild(
                    build=Build(id=f"b_{number}"),
                    sequence=0,
                    submit=Submit(project="web", plan=Plan(), context=context, if_nobody="wait"),
                    trusted=True,
                    created_at=now,
                    queued_since=now,
                )
            )

    await house.router.runners.store.write(fill)
    return await submit(house)


async def upstream_refused(house: House) -> httpx.Response:
    async with strange_registry() as other:
        login = {"username": "me", "secret": "wrong", "plain_http": True}
        return await owner(house).post("/api/registries", json={"host": other.host, **login})


async def internal_error(house: House) -> httpx.Response:
    async def broken(_request: object) -> httpx.Response:
        raise RuntimeError("a mistake")

    house.router.app.router.routes.insert(0, Route("/api/broken", broken))
    return await owner(house).get("/api/broken")


async def draining(house: House) -> httpx.Response:
    house.router.bells.drain()
    return await submit(house)


async def dependency_unavailable(house: House) -> httpx.Response:
    with sqlite3.connect(house.data / "router.db") as other:
        other.execute("ALTER TABLE router_runners RENAME TO elsewhere")
    try:
        return await owner(house).get("/api/capabilities")
    finally:
        with sqlite3.connect(house.data / "router.db") as other:
            other.execute("ALTER TABLE elsewhere RENAME TO router_runners")


async def storage_full(house: House) -> httpx.Response:
    def no_more_pages(ledger: Any) -> None:
        ledger._sql.exec_driver_sql("PRAGMA max_page_count = 1")

    await submit(house)
    await house.router.runners.store.write(no_more_pages)
    for number in range(200):
        answered = await submit(house, key=f"k{number}", plan={"labels": {"l": "x" * 30_000}})
        if answered.status_code != 200:
            break
    return answered


SCENES: Final[dict[str, Scene]] = {
    scene.__name__.replace("_", "-"): scene
    for scene in (
        invalid_document, version_unsupported, unauthenticated, token_expired, token_spent,
        not_allowed, not_found, method_not_allowed, lease_lost, build_finished, key_reused,
        offset_mismatch, in_use, limit_reached, runner_name_taken, session_superseded,
        join_code_used, too_large, context_too_large, digest_mismatch, result_mismatch,
        plan_unsupported, secret_argument, no_eligible_runner, rate_limited, internal_error,
        draining, dependency_unavailable, storage_full, upstream_refused,
        rotation_conflict, stale_fingerprint,
    )
}  # fmt: skip
# What the caller can do about it; all others are `Refused`, or `Unavailable` from 500 on.
RAISED: Final[dict[str, type[PierheadError]]] = {
    "invalid-document": Invalid,
    "too-large": Invalid,
    "context-too-large": Invalid,
    "plan-unsupported": Invalid,
    "secret-argument": Invalid,
    "method-not-allowed": Invalid,
    "version-unsupported": ProtocolMismatch,
    "unauthenticated": TokenRefused,
    "token-expired": TokenRefused,
    "token-spent": TokenRefused,
    "lease-lost": LeaseLost,
    "build-finished": LeaseLost,
    "digest-mismatch": IntegrityError,
    "result-mismatch": IntegrityError,
    "rate-limited": Unavailable,
    "internal-error": Unavailable,
    "draining": Unavailable,
    "dependency-unavailable": Unavailable,
    "storage-full": Unavailable,
}


def test_every_problem_type_has_a_scene() -> None:
    assert SCENES.keys() == PROBLEM_TYPES.keys()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("slug", SCENES)
async def test_the_router_says_it_as_the_registry_has_it(house: House, slug: str) -> None:
    answered = await SCENES[slug](house)

    kind = PROBLEM_TYPES[slug]
    found = msgspec.json.decode(answered.content, type=Problem)
    assert answered.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert (found.slug, found.title, found.status) == (slug, kind.title, kind.status)
    assert answered.status_code == kind.status
    assert found.detail
    assert "Traceback" not in answered.text
    assert ("retry-after" in answered.headers) == (kind.status in {429, 503})


@pytest.mark.parametrize("slug", PROBLEM_TYPES)
def test_the_client_raises_what_the_caller_can_do_something_about(slug: str) -> None:
    raised = error_for(problem(slug, "it happened", hint="do this"))

    assert type(raised) is RAISED.get(slug, Refused)
    assert (str(raised), raised.problem.hint) == ("it happened", "do this")


@pytest.mark.parametrize(
    ("status", "raised"), [(409, Refused), (429, Unavailable), (502, Unavailable)]
)
def test_a_type_that_is_not_known_goes_by_its_status(
    status: int, raised: type[PierheadError]
) -> None:
    unknown = Problem(type="urn:pierhead:problem:of-tomorrow", title="New", status=status)

    assert type(error_for(unknown)) is raised
