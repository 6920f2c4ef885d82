"""The whole life of a build over HTTP: what its submitter sees, and what an attempt may claim."""

import asyncio
import io
import json
import tarfile
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
import zstandard
from msgspec import structs

from pierhead.protocol.build import (
    CancelRequest,
    CancelRequested,
    Event,
    Finished,
    Log,
    PhaseChanged,
    Queued,
    Requeued,
    Started,
)
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import IntegrityError, Invalid, LeaseLost, Refused, TokenRefused
from pierhead.protocol.image import read_image
from pierhead.protocol.lease import Grant, Heartbeat, Release
from pierhead.protocol.plan import Plan
from pierhead.protocol.result import Envelope, Failure, ImageConfig
from pierhead.router.domain.retention import collects_after
from pierhead.router.services import events
from tests.integration.router.stage import (
    House,
    TinyImage,
    push_blob,
    push_image,
    push_manifest,
    tiny_image,
)


def zstd(data: bytes) -> bytes:
    return zstandard.compress(data)


async def all_events(client: RouterClient, build_id: str, after: str | None = None) -> list[Event]:
    return [event async for event in client.events(build_id, after=after)]


async def succeed(house: House, grant: Grant, text: str = "hello", log: bytes = b"") -> str:
    """Push and report as an honest runner does, and return the manifest's digest."""
    image = tiny_image(text)
    await push_image(house.http(grant.token), grant.repository, image)
    await house.client(grant.token).report(grant.build_id, grant.fence, image.envelope(log))
    return image.digest


async def test_a_build_goes_from_the_queue_to_an_image_that_its_project_can_pull(
    house: House,
) -> None:
    token = await house.project_token("web")
    runner = await house.runner()
    build, grant = await house.leased(runner, tags=("1.0",))
    attempt = house.client(grant.token)

    packed = b"".join([part async for part in attempt.context(build.id, grant.fence)])
    rest = b"".join([part async for part in attempt.context(build.id, grant.fence, offset=10)])
    assert rest == packed[10:]
    tar = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert archive.getnames() == ["Dockerfile"]
    await attempt.heartbeat(build.id, grant.fence, Heartbeat(phase="building"))
    first = await attempt.append_log(build.id, grant.fence, 0, zstd(b"step 1\n"))
    second = await attempt.append_log(build.id, grant.fence, 7, zstd(b"step 2\xff\n"))
    assert (first.next_offset, second.next_offset) == (7, 15)
    digest = await succeed(house, grant, log=b"step 1\nstep 2\xff\n")

    seen = await house.client(token).build(build.id)
    assert (seen.state, seen.log_complete) == ("succeeded", True)
    assert seen.reference == f"{house.host}/web@{digest}"
    assert seen.result is not None
    assert seen.result.manifest_digest == digest
    assert await house.client(token).log(build.id) == b"step 1\nstep 2\xff\n"
    pulled = await house.http(token).get("/v2/web/manifests/1.0")
    assert pulled.headers["docker-content-digest"] == digest

    events = await all_events(house.client(token), build.id)
    kinds = [type(event) for event in events if not isinstance(event, Log)]
    assert kinds == [Queued, Started, PhaseChanged, Finished]
    text = b"".join(event.data for event in events if isinstance(event, Log))
    assert text == b"step 1\nstep 2\xff\n"
    assert isinstance(events[-1], Finished)


async def test_a_log_that_lacks_bytes_is_said_to_be_incomplete(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    await house.client(grant.token).append_log(build.id, grant.fence, 0, zstd(b"half"))

    await succeed(house, grant, log=b"half of it")

    assert (await house.owner.build(build.id)).log_complete is False


async def test_the_same_result_again_gets_the_same_receipt_for_15_minutes(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    image = tiny_image()
    await push_image(house.http(grant.token), "web", image)
    attempt = house.client(grant.token)

    first = await attempt.report(build.id, grant.fence, image.envelope())
    assert await attempt.report(build.id, grant.fence, image.envelope()) == first
    other = Envelope(outcome="failed", failure=Failure(cause="runner", message="no"))
    with pytest.raises(LeaseLost):
        await attempt.report(build.id, grant.fence, other)
    house.clock.advance(15 * 60)
    with pytest.raises(TokenRefused) as late:
        await attempt.report(build.id, grant.fence, image.envelope())
    assert late.value.problem.slug == "token-spent"
    assert (await house.owner.build(build.id)).state == "succeeded"


@pytest.mark.parametrize(
    "lie",
    [
        {"manifest_digest": "sha256:" + "0" * 64},
        {"config_digest": "sha256:" + "0" * 64},
        {"platforms": ()},
        {"platforms": tiny_image(platform="linux/arm64").envelope().platforms},
        {"platforms": tiny_image("another").envelope().platforms},
    ],
    ids=["manifest", "config", "no-platform", "platform", "layers"],
)
async def test_a_result_that_lies_fails_the_build_for_good(
    house: House, lie: dict[str, Any]
) -> None:
    build, grant = await house.leased(await house.runner(), tags=("1.0",))
    image = tiny_image()
    await push_image(house.http(grant.token), "web", image)

    with pytest.raises(IntegrityError):
        await house.client(grant.token).report(build.id, grant.fence, image.envelope(**lie))

    seen = await house.owner.build(build.id)
    assert seen.state == "failed"
    assert seen.result is not None
    assert seen.result.failure is not None
    assert seen.result.failure.cause == "integrity"
    assert (seen.reference, seen.attempts) == (None, 1)
    owner = house.http(house.owner_token)
    assert (await owner.get("/v2/web/manifests/1.0")).status_code == 404
    assert (await owner.get(f"/v2/web/manifests/{image.digest}")).status_code == 404


RUN_AS: Final = {
    "User": "app",
    "Env": ["PATH=/bin", "MODE=é"],
    "Cmd": ["serve"],
    "ExposedPorts": {"80/tcp": {}},
    "Labels": {"b": "2", "a": "1"},
    "Healthcheck": {"Test": ["CMD", "true"], "Interval": 5_000_000_000},
}


def image_of(**changed: Any) -> TinyImage:
    """Return an image with another configuration."""
    plain = tiny_image()
    config = json.dumps({**json.loads(plain.config), "config": RUN_AS, **changed}).encode()
    manifest = json.loads(plain.manifest)
    manifest["config"] |= {"digest": digest_of(config), "size": len(config)}
    return replace(plain, config=config, manifest=json.dumps(manifest).encode())


@pytest.mark.parametrize(
    "lie",
    [
        {},
        {"size_bytes": 1},
        {"diff_ids": ("sha256:" + "0" * 64,)},
        {"diff_ids": ()},
        {"created": "2000-01-01T00:00:00Z", "author": "nobody"},
        {"config": None},
        {"config": ImageConfig(user="root", env=("MODE=other",), cmd=("miner",))},
    ],
    ids=["none", "size", "layers", "no-layers", "made", "no-config", "config"],
)
async def test_what_an_image_says_of_itself_is_taken_from_it_and_not_from_its_runner(
    house: House, lie: dict[str, Any]
) -> None:
    build, grant = await house.leased(await house.runner())
    image = image_of(created="2026-01-02T03:04:05Z", author="somebody")
    true = read_image(image.manifest, image.config)
    of_image = {name: value for name, value in lie.items() if name != "config"}
    said = image.envelope(
        platforms=(structs.replace(true.platform, **of_image),),
        config=lie.get("config", true.config),
    )
    await push_image(house.http(grant.token), "web", image)

    first = await house.client(grant.token).report(build.id, grant.fence, said)
    again = await house.client(grant.token).report(build.id, grant.fence, said)

    seen = await house.owner.build(build.id)
    assert first == again
    assert seen.result is not None
    assert (seen.state, seen.result.platforms) == ("succeeded", (true.platform,))
    assert seen.result.config == true.config
    assert true.config.user == "app"
    assert true.platform.diff_ids == (digest_of(image.layer),)
    assert true.platform.size_bytes == len(image.layer)


@pytest.mark.parametrize(
    "image",
    [
        image_of(config={"Env": 5}),
        image_of(config={"Env": [["x"]]}),
        image_of(config={"Env": ["\ud800"]}),
        image_of(config={"Env": ["x"] * 2000}),
        image_of(config=[1]),
        image_of(rootfs={"diff_ids": ["nonsense"]}),
        image_of(rootfs=5),
        image_of(author="x" * 1025, created=5),
        image_of(os=None),
        replace(image_of(), config=b"[" * 100_000),
    ],
)
async def test_an_image_whose_own_words_cannot_be_is_refused(
    house: House, image: TinyImage
) -> None:
    build, grant = await house.leased(await house.runner())
    manifest = json.loads(image.manifest)
    manifest["config"] |= {"digest": digest_of(image.config), "size": len(image.config)}
    image = replace(image, manifest=json.dumps(manifest).encode())
    await push_image(house.http(grant.token), "web", image)

    with pytest.raises(IntegrityError):
        await house.client(grant.token).report(build.id, grant.fence, image.envelope())

    seen = await house.owner.build(build.id)
    assert (seen.state, seen.reference) == ("failed", None)
    assert seen.result is not None
    assert seen.result.failure is not None
    assert seen.result.failure.cause == "integrity"
    assert (seen.result.config, seen.result.platforms) == (None, ())


async def test_an_image_for_another_platform_than_asked_is_refused(house: House) -> None:
    runner = await house.runner(platforms=("linux/amd64", "linux/arm64"))
    build, grant = await house.leased(runner, plan=Plan(platform="linux/arm64"))
    image = tiny_image(platform="linux/amd64")
    await push_image(house.http(grant.token), "web", image)

    with pytest.raises(IntegrityError, match="linux/arm64 was asked for"):
        await house.client(grant.token).report(build.id, grant.fence, image.envelope())


@pytest.mark.parametrize("config", [{"digest": "nonsense"}, ["sha256:" + "0" * 64], 5, None])
async def test_an_index_that_poses_as_an_image_fails_the_build(
    house: House, config: object
) -> None:
    build, grant = await house.leased(await house.runner())
    kind = "application/vnd.oci.image.index.v1+json"
    body = json.dumps({"schemaVersion": 2, "manifests": [], "config": config}).encode()
    pushed = await push_manifest(house.http(grant.token), "web", body, media_type=kind)
    image = tiny_image()
    await push_blob(house.http(grant.token), "web", image.config)
    assert pushed.status_code == 201
    lie = image.envelope(manifest_digest=digest_of(body))
    with pytest.raises(IntegrityError):
        await house.client(grant.token).report(build.id, grant.fence, lie)


async def test_what_an_attempt_pushed_is_invisible_until_its_result_is_accepted(
    house: House,
) -> None:
    token = await house.project_token("web")
    _, grant = await house.leased(await house.runner())
    image = tiny_image()
    await push_image(house.http(grant.token), "web", image)
    path = f"/v2/web/manifests/{image.digest}"

    assert (await house.http(grant.token).get(path)).status_code == 200
    assert (await house.http(token).get(path)).status_code == 404
    await house.client(grant.token).report(grant.build_id, grant.fence, image.envelope())
    assert (await house.http(token).get(path)).content == image.manifest
    assert (await house.http(grant.token).get(path)).status_code in {401, 404}


async def test_a_cancel_wakes_the_held_signals_at_once(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    held = asyncio.create_task(house.client(grant.token).signals(build.id, grant.fence))
    await house.until_watched(build.id)

    await house.owner.cancel(build.id, CancelRequest(reason="wrong branch"))

    async with asyncio.timeout(20):
        assert (await held).cancel_requested


async def test_a_cancel_is_told_with_the_next_heartbeat_and_log_part(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    attempt = house.client(grant.token)
    await house.owner.cancel(build.id, CancelRequest())

    beat = await attempt.heartbeat(build.id, grant.fence, Heartbeat())
    part = await attempt.append_log(build.id, grant.fence, 0, zstd(b"x"))

    assert beat.cancel_requested
    assert part.cancel_requested
    assert (await attempt.signals(build.id, grant.fence)).cancel_requested


async def test_a_runner_that_cancels_by_itself_is_not_believed(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)

    with pytest.raises(IntegrityError) as refused:
        await house.client(grant.token).report(build.id, grant.fence, Envelope(outcome="cancelled"))

    seen = await house.owner.build(build.id)
    assert refused.value.problem.slug == "result-mismatch"
    assert (seen.state, seen.cancelled_by) == ("failed", None)
    assert seen.result is not None
    assert seen.result.failure is not None
    assert seen.result.failure.cause == "integrity"
    assert "nobody asked for that" in seen.result.failure.message


async def test_a_build_that_breaks_its_runner_three_times_is_given_up(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    for again in (True, True, False):
        client = house.client(grant.token)
        await client.release(build.id, grant.fence, Release(reason="unhealthy"))
        if again:
            [grant] = (await runner.acquire()).grants

    seen = await house.owner.build(build.id)
    assert seen.state == "failed"
    assert seen.result is not None
    assert seen.result.failure is not None
    assert seen.result.failure.cause == "runner"
    assert seen.result.failure.message == "its runner broke 3 times while it built this"


async def test_a_success_that_crossed_the_cancel_publishes_nothing(house: House) -> None:
    runner = await house.runner()
    _, earlier = await house.leased(runner, tags=("latest",))
    kept = await succeed(house, earlier, "kept")
    build, grant = await house.leased(runner, tags=("latest",))
    image = tiny_image("unwanted")
    await push_image(house.http(grant.token), "web", image)
    await house.owner.cancel(build.id, CancelRequest())

    receipt = await house.client(grant.token).report(build.id, grant.fence, image.envelope())

    assert (receipt.state, receipt.reference) == ("cancelled", None)
    owner = house.http(house.owner_token)
    assert (await owner.get(f"/v2/web/manifests/{image.digest}")).status_code == 404
    tagged = await owner.get("/v2/web/manifests/latest")
    assert tagged.headers["docker-content-digest"] == kept
    kinds = [type(event) for event in await all_events(house.owner, build.id)]
    assert kinds == [Queued, Started, CancelRequested, Finished]


async def test_a_queued_build_is_cancelled_at_once_and_a_final_one_not_at_all(
    house: House,
) -> None:
    runner = await house.runner()
    _, grant = await house.leased(runner)
    await succeed(house, grant)
    waiting = await house.submit(if_nobody="wait")

    assert (await house.owner.cancel(waiting.id, CancelRequest())).state == "cancelled"
    assert (await house.owner.cancel(waiting.id, CancelRequest())).state == "cancelled"
    with pytest.raises(LeaseLost, match="succeeded already"):
        await house.owner.cancel(grant.build_id, CancelRequest())


async def test_a_stream_resumed_anywhere_misses_nothing_and_repeats_nothing(
    house: House,
) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    attempt = house.client(grant.token)
    await attempt.append_log(build.id, grant.fence, 0, zstd(b"first try\n"))
    await attempt.release(build.id, grant.fence, Release(reason="draining"))
    again = (await runner.acquire()).grants[0]
    attempt = house.client(again.token)
    await attempt.append_log(build.id, again.fence, 0, zstd(b"second try\n"))
    await attempt.heartbeat(build.id, again.fence, Heartbeat(phase="pushing"))
    await attempt.append_log(build.id, again.fence, 11, zstd(b"y" * 150_000))
    await succeed(house, again)

    whole = await all_events(house.owner, build.id)

    kinds = [type(event) for event in whole]
    first = [Queued, Started, Log, Requeued]
    assert kinds == [*first, Started, Log, PhaseChanged, Log, Log, Log, Finished]
    for place, event in enumerate(whole[:-1]):
        assert await all_events(house.owner, build.id, event.cursor) == whole[place + 1 :]


async def test_a_follower_sees_each_event_as_it_happens(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOOK_AGAIN_SECONDS", 3600.0)  # it has to be told
    runner = await house.runner()
    build = await house.submit()
    stream = house.owner.events(build.id)
    async with asyncio.timeout(120):
        assert isinstance(await anext(stream), Queued)
        grant = (await runner.acquire()).grants[0]
        assert isinstance(await anext(stream), Started)
        attempt = house.client(grant.token)
        for offset, line in ((0, b"one\n"), (4, b"two\n")):
            await attempt.append_log(build.id, grant.fence, offset, zstd(line))
            event = await anext(stream)
            assert isinstance(event, Log)
            assert (event.offset, event.data) == (offset, line)
        await succeed(house, grant)
        assert isinstance(await anext(stream), Finished)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_log_has_no_gap_and_no_byte_twice(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    attempt = house.client(grant.token)
    await attempt.append_log(build.id, grant.fence, 0, zstd(b"0123456789"))

    overlap = await attempt.append_log(build.id, grant.fence, 5, zstd(b"56789abc"))
    repeat = await attempt.append_log(build.id, grant.fence, 0, zstd(b"0123"))
    with pytest.raises(Refused) as gap:
        await attempt.append_log(build.id, grant.fence, 20, zstd(b"far"))

    assert overlap.next_offset == 13
    assert repeat.next_offset == 13
    assert gap.value.problem.next_offset == 13
    assert await house.owner.log(build.id) == b"0123456789abc"


async def test_two_copies_of_a_log_part_at_once_are_stored_once(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    attempt = house.client(grant.token)

    await asyncio.gather(
        *(attempt.append_log(build.id, grant.fence, 0, zstd(b"same\n")) for _ in range(10))
    )

    assert await house.owner.log(build.id) == b"same\n"


async def test_a_log_part_that_swells_is_refused(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    bomb = zstd(bytes(64 * 1024 * 1024))
    assert len(bomb) < 16 * 1024

    with pytest.raises(Invalid) as refused:
        await house.client(grant.token).append_log(build.id, grant.fence, 0, bomb)

    assert refused.value.problem.slug == "too-large"
    assert await house.owner.log(build.id) == b""


async def test_a_log_ends_at_its_cap(house: House) -> None:
    build, grant = await house.leased(await house.runner())
    attempt = house.client(grant.token)
    await attempt.append_log(build.id, grant.fence, 0, zstd(b"begun"))
    cap = 64 * 1024 * 1024
    with (house.data / "logs" / build.id / f"{grant.fence}.log").open("r+b") as file:
        file.truncate(cap - 10)  # as if so much had come

    last = await attempt.append_log(build.id, grant.fence, cap - 10, zstd(b"x" * 10))
    with pytest.raises(Invalid):
        await attempt.append_log(build.id, grant.fence, cap, zstd(b"y"))

    assert last.next_offset == cap


async def test_a_build_for_one_platform_is_a_build_as_always(house: House) -> None:
    build = await house.submit(platforms=("linux/arm64/v8", "linux/arm64"))

    with pytest.raises(Invalid) as refused:
        await house.submit(platforms=("linux/arm64",), plan=Plan(platform="linux/amd64"))

    view = await house.owner.build(build.id)
    assert view.plan is not None
    assert view.plan.platform == "linux/arm64"
    assert (view.children, view.parent) == ((), None)
    assert refused.value.problem.hint == "leave the plan's platform out"


@pytest.mark.parametrize(("days", "hours"), [(0, 0), (6, 0), (8, 1), (400, 1), (-400, 0)])
async def test_what_a_clock_says_that_jumped_makes_nothing_old_at_once(
    house: House, days: int, hours: int
) -> None:
    await house.router.sweep.recover()
    house.clock.advance(days * 86_400)

    away = await house.router.sweep.recover()

    assert away - timedelta(days=days) < timedelta(minutes=1)
    assert collects_after(away) == timedelta(hours=hours)
