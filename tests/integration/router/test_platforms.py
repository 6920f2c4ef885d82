"""A build for several platforms: one build for each of them, and one image or none."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pierhead.protocol.build import (
    BuildView,
    CancelRequest,
    CancelRequested,
    Event,
    Finished,
    Log,
    Notice,
    Queued,
    Rerun,
    Started,
    WhyRequest,
)
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import Invalid, LeaseLost, Refused
from pierhead.protocol.lease import Grant
from pierhead.protocol.result import BytesMoved, CacheUse, Envelope, Failure, StopProof
from pierhead.router.ports.store import Ledger
from tests.integration.router.stage import (
    House,
    MovableClock,
    ScriptedRunner,
    TinyImage,
    open_house,
    push_image,
    tiny_image,
)

BOTH = ("linux/amd64", "linux/arm64")
INDEX = "application/vnd.oci.image.index.v1+json"
BROKEN = Envelope(
    outcome="failed", failure=Failure(cause="command", message="exit code 1", step="2/2 RUN false")
)


@dataclass(kw_only=True)
class Pair:
    """Two runners, each of its platform, with what they hold of one build."""

    house: House
    view: BuildView
    grants: dict[str, Grant] = field(default_factory=dict)
    images: dict[str, TinyImage] = field(default_factory=dict)

    async def log(self, platform: str, text: bytes) -> None:
        grant = self.grants[platform]
        attempt = self.house.client(grant.token)
        await attempt.append_log(grant.build_id, grant.fence, 0, _zstd(text))

    async def build(self, platform: str, **said: Any) -> None:
        """Push an image and report it, as an honest runner does."""
        grant, image = self.grants[platform], tiny_image(f"for {platform}", platform)
        self.images[platform] = image
        await push_image(self.house.http(grant.token), grant.repository, image)
        await self.report(platform, image.envelope(**said))

    async def report(self, platform: str, envelope: Envelope) -> None:
        grant = self.grants[platform]
        await self.house.client(grant.token).report(grant.build_id, grant.fence, envelope)

    async def whole(self) -> BuildView:
        return await self.house.owner.build(self.view.id)

    async def child(self, platform: str) -> BuildView:
        [child] = [one for one in self.view.children if one.platform == platform]
        return await self.house.owner.build(child.id)


def _zstd(text: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(text)


async def runners(house: House) -> tuple[ScriptedRunner, ScriptedRunner]:
    return await house.runner("desktop"), await house.runner("pi", platforms=("linux/arm64",))


async def pair(house: House, **options: Any) -> Pair:
    """Submit a build for both platforms, and let each runner take its own."""
    desktop, pi = await runners(house)
    view = await house.submit(platforms=BOTH, **options)
    made = Pair(house=house, view=view)
    for runner in (desktop, pi):
        [grant] = (await runner.acquire(slots=4)).grants
        assert grant.plan.platform is not None
        made.grants[grant.plan.platform] = grant
    return made


async def all_events(client: RouterClient, build_id: str, after: str | None = None) -> list[Event]:
    return [event async for event in client.events(build_id, after=after)]


async def index_at(house: House, where: str) -> dict[str, Any]:
    http = house.http(house.owner_token)
    answer = await http.get(f"/v2/web/manifests/{where}", headers={"Accept": INDEX})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == INDEX
    assert digest_of(answer.content) == answer.headers["docker-content-digest"]
    found: dict[str, Any] = json.loads(answer.content)
    return found


async def test_each_platform_is_built_where_it_is_at_home_and_the_tags_go_to_the_index(
    house: House,
) -> None:
    made = await pair(house, tags=("latest", "v1"))
    assert [(one.platform, one.state) for one in made.view.children] == [
        (platform, "queued") for platform in BOTH
    ]
    assert (await made.whole()).state == "leased"
    assert {*made.grants} == {*BOTH}

    await made.build("linux/arm64", cache=CacheUse(steps=2, cached=1), peak_memory_bytes=7)
    half = await made.whole()
    assert (half.state, half.reference) == ("leased", None)
    arm, amd = made.images["linux/arm64"].digest, ""
    http = house.http(house.owner_token)
    assert (await http.get(f"/v2/web/manifests/{arm}")).status_code == 404
    assert (await http.get("/v2/web/manifests/latest")).status_code == 404
    await made.build("linux/amd64", bytes_moved=BytesMoved(pushed_bytes=5), peak_memory_bytes=9)

    whole, amd = await made.whole(), made.images["linux/amd64"].digest
    assert (whole.state, [child.state for child in whole.children]) == (
        "succeeded",
        ["succeeded", "succeeded"],
    )
    for where in ("latest", "v1", str(whole.reference).partition("@")[2]):
        index = await index_at(house, where)
        assert [(one["platform"], one["digest"]) for one in index["manifests"]] == [
            ({"architecture": "amd64", "os": "linux"}, amd),
            ({"architecture": "arm64", "os": "linux"}, arm),
        ]
        for one in index["manifests"]:
            got = await http.get(f"/v2/web/manifests/{one['digest']}")
            assert (len(got.content), got.headers["content-type"]) == (
                one["size"],
                one["mediaType"],
            )
    result = whole.result
    assert result is not None
    assert [one.manifest_digest for one in result.platforms] == [amd, arm]
    assert result.config_digest == result.platforms[0].config_digest
    assert (result.cache, result.peak_memory_bytes) == (CacheUse(steps=2, cached=1), 9)
    assert (result.attempts, result.where, whole.runner) == (2, "desktop, pi", "desktop, pi")
    child = await made.child("linux/arm64")
    assert (child.parent, child.reference, child.tags) == (whole.id, None, ())
    assert child.result is not None
    assert (child.result.attempts, child.result.where) == (1, "pi")


async def test_a_replayed_submit_is_the_same_parent_with_the_same_children(house: House) -> None:
    await runners(house)
    first = await house.submit(platforms=BOTH, key="deploy-1")
    again = await house.submit(platforms=(*BOTH, "linux/arm64/v8"), key="deploy-1")

    assert (again.id, again.children) == (first.id, first.children)
    with pytest.raises(Refused) as refused:
        await house.submit(platforms=BOTH[::-1], key="deploy-1")
    assert refused.value.problem.slug == "key-reused"
    page = await house.owner.builds()
    assert [view.id for view in page.builds] == [first.id]
    opened = await house.owner.builds(children=True)
    assert {view.id for view in opened.builds} == {first.id, *(one.id for one in first.children)}


async def test_the_first_failure_ends_the_others_and_nothing_of_the_image_is_there(
    house: House,
) -> None:
    made = await pair(house, tags=("latest",))
    image = tiny_image("for linux/amd64", "linux/amd64")
    grant = made.grants["linux/amd64"]
    await push_image(house.http(grant.token), grant.repository, image)
    await made.report("linux/arm64", BROKEN)

    sibling = await made.child("linux/amd64")
    assert sibling.cancel_requested
    assert sibling.cancelled_by == "the build for linux/arm64"
    assert sibling.cancel_reason == "it failed: an image is for all of its platforms, or for none"
    assert (await made.whole()).state == "leased", "it has no end while something of it runs"
    beat = await house.client(grant.token).signals(grant.build_id, grant.fence)
    assert beat.cancel_requested
    await made.report("linux/amd64", Envelope(outcome="cancelled", stop_proof=StopProof()))

    whole = await made.whole()
    assert whole.state == "failed"
    assert whole.result is not None
    failure = whole.result.failure
    assert failure is not None
    assert (failure.cause, failure.message) == ("command", "linux/arm64: exit code 1")
    assert failure.step == "2/2 RUN false"
    http = house.http(house.owner_token)
    for where in (image.digest, "latest"):
        assert (await http.get(f"/v2/web/manifests/{where}")).status_code == 404
    assert whole.reference is None


async def test_what_was_built_already_is_dropped_when_a_sibling_fails(house: House) -> None:
    made = await pair(house)
    await made.build("linux/amd64")
    await made.report("linux/arm64", BROKEN)

    whole = await made.whole()
    assert [child.state for child in whole.children] == ["succeeded", "failed"]
    assert whole.state == "failed"
    kept = await house.router.garbage.store.read(
        lambda ledger: ledger.manifest("web", made.images["linux/amd64"].digest, "any")
    )
    assert kept is None
    attempt = f"{made.grants['linux/amd64'].build_id}.1"
    pending = await house.router.garbage.store.read(
        lambda ledger: ledger.manifest("web", made.images["linux/amd64"].digest, attempt)
    )
    assert pending is None


async def test_a_cancel_ends_all_and_the_proof_is_of_all(house: House) -> None:
    made = await pair(house)
    view = await house.owner.cancel(made.view.id, CancelRequest(reason="wrong branch"))
    assert (view.state, view.cancel_requested) == ("leased", True)

    await made.report(
        "linux/amd64", Envelope(outcome="cancelled", stop_proof=StopProof(took_ms=12))
    )
    assert (await made.whole()).state == "leased"
    left = StopProof(took_ms=7, mounts=("/tmp/left",))
    await made.report("linux/arm64", Envelope(outcome="cancelled", stop_proof=left))

    whole = await made.whole()
    assert (whole.state, whole.cancel_reason) == ("cancelled", "wrong branch")
    assert whole.result is not None
    assert whole.result.stop_proof == StopProof(took_ms=12, mounts=("/tmp/left",))
    again = await house.owner.cancel(made.view.id, CancelRequest())
    assert again.state == "cancelled"


async def test_whoever_ends_one_platform_ends_all(house: House) -> None:
    made = await pair(house)
    child = await made.child("linux/arm64")

    await house.owner.cancel(child.id, CancelRequest(reason="only this one"))
    await made.report("linux/arm64", Envelope(outcome="cancelled", stop_proof=StopProof()))

    sibling = await made.child("linux/amd64")
    assert (sibling.cancel_requested, sibling.cancel_reason) == (True, "only this one")


async def test_what_nobody_began_is_cancelled_at_once(house: House) -> None:
    await runners(house)
    view = await house.submit(platforms=BOTH)

    cancelled = await house.owner.cancel(view.id, CancelRequest())

    assert cancelled.state == "cancelled"
    assert [child.state for child in cancelled.children] == ["cancelled", "cancelled"]
    with pytest.raises(Invalid):
        await house.owner.run_here(view.id)


async def test_a_newer_build_of_the_group_ends_parents_with_their_children(house: House) -> None:
    made = await pair(house, supersedes="web:main", key="1")

    newest = await house.submit(supersedes="web:main", key="2", platforms=BOTH)

    old = await made.whole()
    assert (old.cancel_requested, old.cancel_reason) == (True, f"replaced by {newest.id}")
    for platform in BOTH:
        assert (await made.child(platform)).cancel_reason == f"replaced by {newest.id}"
    assert (await house.owner.build(newest.id)).state == "queued"


async def test_a_rerun_is_another_build_for_the_same_platforms(house: House) -> None:
    made = await pair(house, tags=("latest",))
    for platform in BOTH:
        await made.build(platform)

    again = await house.owner.rerun(made.view.id, Rerun(key="again"))
    one = await house.owner.rerun(made.view.children[1].id, Rerun(key="one"))

    assert [child.platform for child in again.children] == [*BOTH]
    assert not {child.id for child in again.children} & {child.id for child in made.view.children}
    assert (one.parent, one.children, one.tags) == (None, (), ())
    assert one.plan is not None
    assert one.plan.platform == "linux/arm64"


async def test_why_tells_for_each_platform_who_builds_it(house: House) -> None:
    await house.runner("desktop")
    view = await house.submit(platforms=BOTH, if_nobody="wait")

    why = await house.owner.why(view.id)
    asked = await house.owner.why_not(WhyRequest(project="web", platforms=BOTH, if_nobody="wait"))

    for told in (why, asked):
        assert told.wants == "linux/amd64 and linux/arm64"
        assert told.eligible == ("desktop",)
        amd, arm = told.platforms
        assert (amd.eligible, amd.verdict) == (("desktop",), "waits: desktop is free")
        assert (arm.platform, arm.eligible) == ("linux/arm64", ())
        assert arm.rejections[0].reason == "linux/amd64 only; the build wants linux/arm64"
        assert arm.verdict == "waits: no runner can take this build (desktop)"
    assert [one.build for one in why.platforms] == [child.id for child in view.children]


async def test_a_platform_that_nobody_can_build_fails_as_a_build_for_it_alone_would(
    house: House,
) -> None:
    await house.runner("desktop")
    alone = await house.submit(platforms=("linux/arm64",), if_nobody="fail")
    both = await house.submit(platforms=BOTH, if_nobody="fail")

    assert (alone.state, both.state) == ("failed", "failed")
    assert alone.result is not None
    assert both.result is not None
    one, whole = alone.result.failure, both.result.failure
    assert one is not None
    assert whole is not None
    assert (whole.cause, whole.message) == (one.cause, f"linux/arm64: {one.message}")
    assert [child.state for child in both.children] == ["cancelled", "failed"]


async def test_no_runner_is_ever_given_a_parent_and_the_queue_counts_what_waits(
    house: House,
) -> None:
    desktop, _ = await runners(house)
    view = await house.submit(platforms=BOTH)
    other = await house.submit()

    grants = (await desktop.acquire(slots=4)).grants

    assert [grant.build_id for grant in grants] == [view.children[0].id, other.id]
    assert (await house.owner.build(view.id)).position is None
    assert (await house.owner.build(view.children[1].id)).position == 1


async def test_its_events_are_those_of_its_platforms_each_marked_and_resumed_anywhere(
    house: House,
) -> None:
    made = await pair(house)
    await made.log("linux/arm64", b"STEP 1/2: FROM scratch\n")
    await made.log("linux/amd64", b"STEP 1/2: FROM scratch\nSTEP 2/2: COPY a b\n")
    log = b"STEP 1/2: FROM scratch\n"
    await made.build("linux/arm64", log_bytes=len(log), log_digest=digest_of(log))
    await made.build("linux/amd64")

    whole = await all_events(house.owner, made.view.id)

    assert isinstance(whole[0], Queued)
    assert whole[0].platform is None
    assert isinstance(whole[-1], Finished)
    assert whole[-1].build.id == made.view.id
    for platform, runner in zip(BOTH, ("desktop", "pi"), strict=True):
        mine = [event for event in whole[1:-1] if getattr(event, "platform", None) == platform]
        kinds = [type(event) for event in mine]
        assert kinds[:2] == [Queued, Started]
        assert mine[-1] == Notice(
            cursor=mine[-1].cursor, text=f"succeeded on {runner}", platform=platform
        )
        told = b"".join(event.data for event in mine if isinstance(event, Log))
        child = await made.child(platform)
        assert told == await house.owner.log(child.id)
    assert len({event.cursor for event in whole}) == len(whole)
    for place, event in enumerate(whole[:-1]):
        assert await all_events(house.owner, made.view.id, event.cursor) == whole[place + 1 :]


async def test_a_cursor_that_is_none_is_refused(house: House) -> None:
    await runners(house)
    view = await house.submit(platforms=BOTH)
    for bad in ("1.0-", "1.0-x", "1.0-1.0-1.0-1.0-1.0-1.0", "-1.0"):
        answer = await house.http(house.owner_token).get(
            f"/api/builds/{view.id}/events", headers={"Last-Event-ID": bad}
        )
        assert answer.status_code == 400, bad


async def test_each_platform_has_a_log_of_its_own_and_the_parent_says_which(house: House) -> None:
    made = await pair(house)
    with pytest.raises(Invalid) as refused:
        await house.owner.log(made.view.id)

    amd, arm = made.view.children
    assert refused.value.problem.hint == (
        f"read one of them: {amd.id} (linux/amd64), {arm.id} (linux/arm64)"
    )


async def test_secrets_are_there_for_each_platform_until_it_has_ended(house: House) -> None:
    made = await pair(house, secrets={"npm": b"hunter2-hunter2"})
    store = house.router.garbage.store

    def kept(ledger: Ledger) -> list[int]:
        return [len(ledger.secrets(child.id)) for child in made.view.children]

    for grant in made.grants.values():
        sealed = await house.client(grant.token).secrets(grant.build_id, grant.fence)
        assert len(sealed.box) > 0
    assert await store.read(kept) == [1, 1]
    await made.build("linux/arm64")
    assert await store.read(kept) == [1, 0]
    await made.build("linux/amd64")
    assert await store.read(kept) == [0, 0]


async def test_here_is_asked_only_for_the_platform_that_it_is(house: House) -> None:
    credential = await house.router.runners.enroll_here()
    here = ScriptedRunner(house=house, name="here", credential=credential)
    await here.start("here-life-1")
    view = await house.submit(platforms=BOTH, if_nobody="wait")

    asked = await house.owner.run_here(view.id)

    assert asked.id == view.id
    [grant] = (await here.acquire(slots=4)).grants
    assert grant.build_id == view.children[0].id
    with pytest.raises(Refused, match="linux/amd64 only; the build wants linux/arm64"):
        await house.owner.run_here(view.children[1].id)
    with pytest.raises(Refused, match="linux/amd64 only; the build wants linux/arm64"):
        await house.owner.run_here(view.id)


async def test_the_router_dies_between_two_results_and_the_image_is_whole_all_the_same(
    tmp_path: Path,
) -> None:
    clock = MovableClock()
    async with open_house(tmp_path, clock) as house:
        made = await pair(house, tags=("latest",))
        await made.build("linux/amd64")
    async with open_house(tmp_path, clock) as house:
        made.house = house
        assert (await made.whole()).state == "leased"
        await made.build("linux/arm64")

        whole = await made.whole()
        assert whole.state == "succeeded"
        assert len((await index_at(house, "latest"))["manifests"]) == 2


async def test_a_result_that_comes_again_changes_nothing(house: House) -> None:
    made = await pair(house)
    for platform in BOTH:
        await made.build(platform)
    before = await made.whole()

    for platform in BOTH:
        await made.report(platform, made.images[platform].envelope())

    assert await made.whole() == before
    with pytest.raises(LeaseLost):
        await house.owner.cancel(made.view.id, CancelRequest())


async def test_a_cancel_is_told_to_whoever_follows(house: House) -> None:
    made = await pair(house)
    await house.owner.cancel(made.view.id, CancelRequest(reason="wrong branch"))
    for platform in BOTH:
        await made.report(platform, Envelope(outcome="cancelled", stop_proof=StopProof()))

    told = await all_events(house.owner, made.view.id)

    asked = [event for event in told if isinstance(event, CancelRequested)]
    assert {event.platform for event in asked} == {*BOTH}


async def test_garbage_keeps_what_an_index_names_and_takes_all_of_it_when_nothing_does(
    house: House,
) -> None:
    made = await pair(house, tags=("latest",))
    for platform in BOTH:
        await made.build(platform)
    index = str((await made.whole()).reference).partition("@")[2]
    parts = [made.images[platform].digest for platform in BOTH]
    store, sweep = house.router.garbage.store, house.router.garbage

    async def there() -> list[bool]:
        return [
            await store.read(lambda ledger, one=one: ledger.manifest("web", one, "") is not None)  # type: ignore[misc]
            for one in (index, *parts)
        ]

    house.clock.advance(91 * 86400)
    await sweep.once()
    assert await there() == [True, True, True], "a tag names the index"
    assert (await house.owner.builds(children=True)).builds == ()
    await house.http(house.owner_token).delete("/v2/web/manifests/latest")

    second = await pair_again(house)
    await second.build("linux/amd64")
    await second.build("linux/arm64")
    house.clock.advance(91 * 86400)
    await sweep.once()

    gone = str((second.images["linux/amd64"]).digest)
    left = await store.read(lambda ledger: ledger.manifest("web", gone, ""))
    assert left is None


async def pair_again(house: House) -> Pair:
    """Build once more with runners of other names."""
    desktop = await house.runner("desktop-2")
    pi = await house.runner("pi-2", platforms=("linux/arm64",))
    made = Pair(house=house, view=await house.submit(platforms=BOTH))
    for runner in (desktop, pi):
        [grant] = (await runner.acquire(slots=4)).grants
        assert grant.plan.platform is not None
        made.grants[grant.plan.platform] = grant
    return made
