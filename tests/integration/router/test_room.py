"""How many builds may wait: of a project, and of all."""

import json

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.errors import Unavailable
from pierhead.protocol.meta import BuildCounts
from pierhead.protocol.plan import ContextRef, Plan, Submit
from pierhead.protocol.problem import Problem
from pierhead.router.domain.build import Build
from pierhead.router.ports.builds import StoredBuild
from pierhead.router.ports.store import Ledger
from pierhead.router.services import submit as submissions
from tests.integration.router.stage import House
from tests.integration.router.test_projects import typed


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
    assert "pierhead builds cancel --project web --waiting" in refused.hint
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


async def test_all_that_waits_of_a_project_is_cancelled_at_once(house: House) -> None:
    runner = await house.runner()
    running, _ = await house.leased(runner, project="web", if_nobody="wait")
    await fill(house, await house.upload("web"), "web", 205)
    other = await house.submit("shop", if_nobody="wait")
    cancel = ("builds", "cancel", "--project", "web")

    unasked, _, said = await typed(house, *cancel, "--waiting")
    before = (await house.owner.capabilities()).builds
    code, _, told = await typed(house, *cancel, "--waiting", "--yes")
    after = (await house.owner.capabilities()).builds

    assert unasked == 2
    assert "205 builds of web would be cancelled: 205 waiting" in said
    assert "hint: pierhead builds cancel --project web --waiting --yes" in said
    assert (code, told) == (0, "205 builds of web cancelled\n")
    assert before == BuildCounts(running=1, waiting=206)
    assert after == BuildCounts(running=1, waiting=1)
    assert (await house.owner.build(running.id)).cancel_requested is False
    assert (await house.owner.build(other.id)).state == "queued"

    code, out, _ = await typed(house, *cancel, "--all", "--yes", "--json")

    assert code == 0
    assert [one["id"] for one in json.loads(out)["builds"]] == [running.id]
    assert (await house.owner.build(running.id)).cancel_requested


async def test_what_to_cancel_has_to_be_said(house: House) -> None:
    for words in ((), ("--project", "web"), ("@", "--project", "web", "--all"), ("--all",)):
        code, _, said = await typed(house, "builds", "cancel", *words, "--yes")
        assert code == 2
        assert "hint: pierhead builds cancel ID" in said


async def test_a_project_that_is_busy_is_not_removed_and_says_how_to_end_it(house: House) -> None:
    await house.runner()
    await house.submit("web", if_nobody="wait")

    code, _, said = await typed(house, "projects", "remove", "web", "--yes")

    assert code == 1
    assert "builds of web that wait or run: 1" in said
    assert "hint: end them: pierhead builds cancel --project web --all" in said


async def test_status_counts_every_build_and_says_of_whom(house: House) -> None:
    runner = await house.runner()
    await house.leased(runner, project="shop", if_nobody="wait")
    context = await house.upload("web")
    token = await house.project_token("web")
    await fill(house, context, "web", 150)
    await fill(house, context, "docs", 150)

    _, all_, _ = await typed(house, "status")
    own = (await house.client(token).capabilities()).builds

    assert "\n1 build running, 300 waiting\n" in all_
    assert "ready    1 build " in all_
    assert own == BuildCounts(running=0, waiting=150, project="web")
