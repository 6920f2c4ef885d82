"""Steps are told as events: where their lines end, once, with how long each took."""

import zstandard

from pierhead.protocol.build import Event, Finished, Log, Step
from pierhead.protocol.lease import Heartbeat
from pierhead.protocol.result import Envelope, Failure
from tests.integration.router.stage import House, push_image, tiny_image

LOG = (
    b"STEP 1/3: FROM scratch\n"
    b"STEP 2/3: COPY a /\n"
    b"--> Using cache 4711\n"
    b"STEP 3/3: RUN make\n"
    b"make: it works\n"
)


async def events(house: House, build_id: str, after: str | None = None) -> list[Event]:
    return [event async for event in house.owner.events(build_id, after=after)]


async def test_steps_come_once_in_order_and_where_their_lines_end(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    attempt = house.client(grant.token)
    for begin, end in ((0, 10), (10, 30), (10, 30), (20, 70), (70, len(LOG))):
        part = zstandard.compress(LOG[begin:end])
        await attempt.append_log(build.id, grant.fence, begin, part)
        house.clock.advance(2)
    image = tiny_image()
    await push_image(house.http(grant.token), "web", image)
    await attempt.report(build.id, grant.fence, image.envelope(LOG))

    told = await events(house, build.id)

    steps = [event for event in told if isinstance(event, Step)]
    assert [(step.name, step.state) for step in steps] == [
        ("1/3 FROM scratch", "started"),
        ("1/3 FROM scratch", "done"),
        ("2/3 COPY a /", "started"),
        ("2/3 COPY a /", "cached"),
        ("3/3 RUN make", "started"),
        ("3/3 RUN make", "done"),
    ]
    assert [step.took_ms is None for step in steps] == [True, False] * 3
    assert (steps[1].took_ms or 0) >= 4000
    seen = b""
    for event in told:
        if isinstance(event, Log):
            seen += event.data
        if isinstance(event, Step) and event.state == "started":
            assert seen.endswith(event.name.partition(" ")[2].encode() + b"\n")
    assert seen == LOG
    assert isinstance(told[-1], Finished)
    for number, event in enumerate(told):
        rest = await events(house, build.id, event.cursor)
        assert [e for e in rest if not isinstance(e, Log)] == [
            e for e in told[number + 1 :] if not isinstance(e, Log)
        ]


async def test_whoever_watches_late_is_told_for_how_long_the_step_has_run(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    attempt = house.client(grant.token)
    log = b"STEP 1/1: RUN make\n"
    await attempt.append_log(build.id, grant.fence, 0, zstandard.compress(log))

    ran = []
    for _ in range(2):
        house.clock.advance(90)
        async for event in house.owner.events(build.id):
            if isinstance(event, Step):
                assert (event.state, event.took_ms) == ("started", None)
                ran.append(event.ran_ms or 0)
                break

    assert ran[0] >= 90_000
    assert ran[1] >= ran[0] + 90_000


async def test_the_step_at_which_a_build_fails_failed(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    attempt = house.client(grant.token)
    log = b"STEP 1/1: RUN false\n"
    await attempt.append_log(build.id, grant.fence, 0, zstandard.compress(log))
    owner = house.client(house.owner_token)
    running = [await owner.build(build.id), *(await owner.builds()).builds]
    assert [one.step for one in running] == ["1/1 RUN false"] * 2
    failure = Failure(cause="command", message="a command ended with exit code 1")
    await attempt.report(build.id, grant.fence, Envelope(outcome="failed", failure=failure))

    told = await events(house, build.id)

    assert [event.state for event in told if isinstance(event, Step)] == ["started", "failed"]
    assert (await owner.build(build.id)).step is None


async def test_what_follows_the_last_step_is_not_its_time(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner)
    attempt = house.client(grant.token)
    log = b"STEP 1/1: FROM scratch\n"
    await attempt.append_log(build.id, grant.fence, 0, zstandard.compress(log))
    house.clock.advance(2)
    for _ in range(2):
        await attempt.heartbeat(build.id, grant.fence, Heartbeat(phase="pushing"))
        house.clock.advance(5)
    image = tiny_image()
    await push_image(house.http(grant.token), "web", image)
    await attempt.report(build.id, grant.fence, image.envelope(log))

    told = await events(house, build.id)

    [_, ended] = [event for event in told if isinstance(event, Step)]
    assert ended.state == "done"
    assert 2000 <= (ended.took_ms or 0) < 5000
