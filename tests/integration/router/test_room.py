"""How many builds may wait: of a project, and of all."""

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.plan import ContextRef, Plan, Submit
from pierhead.protocol.problem import Problem
from pierhead.router.domain.build import Build
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger
from pierhead.router.services import submit as submissions
from tests.integration.router.stage import House


async def fill(house: House, context: ContextRef, project: str, count: int) -> None:
    now = house.clock.now()

    def add(ledger: Ledger) -> None:
        for number in range(count):
            ledger.add_build(
                StoredBuild(
                    build=Build(id=f"b_{project}{number}"),
                    sequence=0,
                    submit=Submit(project=project, plan=Plan(), context=context, if_nobody="wait"),
                    trusted=True,
                    created_at=now,
                    queued_since=now,
                )
            )

    await house.router.runners.store.write(add)


async def refusal(house: House, project: str, **more: object) -> Problem:
    try:
        build = await house.submit(project, if_nobody="wait", **more)
    except Unavailable as refused:
        return refused.problem
    raise AssertionError(f"{build.id} was taken")


async def test_a_project_that_fills_its_share_leaves_the_rest_to_the_others(house: House) -> None:
    await house.runner()
    context = await house.upload("web")
    await fill(house, context, "web", submissions.QUEUE_OF_PROJECT_MAX - 1)
    last = await house.submit("web", if_nobody="wait")

    refused = await refusal(house, "web")
    other = await house.submit("shop", if_nobody="wait")

    assert (refused.slug, refused.status) == ("rate-limited", 429)
    assert refused.detail == "200 builds of web wait already, as many as may"
    assert refused.hint is not None
    assert "--project web" in refused.hint
    assert refused.retry_after_ms == submissions.QUEUE_RETRY_MS
    assert other.state == "queued"

    await house.owner.cancel(last.id, CancelRequest())
    assert (await house.submit("web", if_nobody="wait")).state == "queued"


async def test_one_for_several_platforms_needs_room_for_each(house: House) -> None:
    await house.runner(platforms=("linux/amd64", "linux/arm64"))
    context = await house.upload("web")
    await fill(house, context, "web", submissions.QUEUE_OF_PROJECT_MAX - 1)

    refused = await refusal(house, "web", platforms=("linux/amd64", "linux/arm64"))

    assert refused.slug == "rate-limited"
    assert (await house.submit("web", if_nobody="wait")).state == "queued"


async def test_the_room_of_all_has_an_end_too(house: House) -> None:
    await house.runner()
    context = await house.upload("p0")
    each = submissions.QUEUE_OF_PROJECT_MAX
    for number in range(submissions.QUEUE_MAX // each):
        await fill(house, context, f"p{number}", each)

    refused = await refusal(house, "shop")

    assert refused.slug == "rate-limited"
    assert refused.detail == "1000 builds wait already"
