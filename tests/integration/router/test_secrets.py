"""Secrets at the router: who gets them, sealed to whom, and how long they are there."""

import base64
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import IntegrityError, Invalid, LeaseLost, PierheadError, Refused
from pierhead.protocol.lease import Grant, Release
from pierhead.protocol.plan import SECRETS_BYTES_MAX, Plan, Submit
from pierhead.protocol.result import Envelope, Failure
from pierhead.protocol.runner import SessionRequest
from pierhead.protocol.sealing import SessionKey
from tests.integration.router.stage import House, ScriptedRunner, capabilities, open_house
from tests.sight import written_below

VALUES = {"npm": b"canary-npm-value", "key": b"line one\nline two\0\n", "empty": b""}
FAILED = Envelope(outcome="failed", failure=Failure(cause="command", message="no"))


async def received(runner: ScriptedRunner, grant: Grant) -> dict[str, bytes]:
    """Fetch and open what the attempt may have."""
    sealed = await runner.house.client(grant.token).secrets(grant.build_id, grant.fence)
    return runner.key.open(sealed, build_id=grant.build_id, fence=grant.fence)


def stored(house: House) -> int:
    """Return how many secrets the database has."""
    with sqlite3.connect(house.data / "router.db") as database:
        found: int = database.execute("SELECT count(*) FROM router_secrets").fetchone()[0]
        return found


async def test_the_attempt_gets_the_values_and_everybody_else_only_their_names(
    house: House,
) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner, secrets=VALUES)

    assert await received(runner, grant) == VALUES
    assert build.plan is not None
    assert build.plan.secrets == grant.plan.secrets == ("empty", "key", "npm")
    everything = written_below(house.data) + written_below(house.config)
    for value in (VALUES["npm"], VALUES["key"]):
        for form in (value, base64.b64encode(value), value.hex().encode()):
            assert form not in everything


@pytest.mark.parametrize("end", ["failed", "cancelled", "superseded"])
async def test_they_are_gone_with_the_final_state(house: House, end: str) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner, secrets=VALUES, supersedes="group")
    attempt = house.client(grant.token)
    assert stored(house) == 3

    if end == "failed":
        await attempt.report(build.id, grant.fence, FAILED)
    elif end == "cancelled":
        await house.owner.cancel(build.id, CancelRequest())
        await attempt.report(build.id, grant.fence, Envelope(outcome="cancelled"))
    else:
        waiting = await house.submit(secrets=VALUES, supersedes="other")
        await house.submit(supersedes="other")
        assert (await house.owner.build(waiting.id)).state == "cancelled"
        assert stored(house) == 3
        return

    assert stored(house) == 0
    with pytest.raises(Refused):
        await attempt.secrets(build.id, grant.fence)


async def test_another_attempt_gets_them_again_and_the_first_one_nothing_more(
    house: House,
) -> None:
    runner, other = await house.runner("one"), await house.runner("two")
    build, first = await house.leased(runner, secrets=VALUES)
    await house.client(first.token).release(build.id, 1, Release(reason="draining"))

    [second] = (await other.acquire()).grants

    assert second.fence == 2
    assert await received(other, second) == VALUES
    with pytest.raises(LeaseLost):
        await house.client(first.token).secrets(build.id, 1)
    with pytest.raises(LeaseLost):
        await house.client(first.token).secrets(build.id, 2)


async def test_a_box_opens_for_the_session_that_holds_the_build_only(house: House) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner, secrets=VALUES)

    sealed = await house.client(grant.token).secrets(build.id, grant.fence)

    with pytest.raises(IntegrityError):
        SessionKey().open(sealed, build_id=build.id, fence=grant.fence)


async def test_a_runner_does_not_get_the_secrets_of_a_build_that_is_not_its_own(
    house: House,
) -> None:
    runner, other = await house.runner("one"), await house.runner("two")
    build, _ = await house.leased(runner, secrets=VALUES)
    _, own = await house.leased(other)

    for token in (own.token, other.credential, house.owner_token):
        with pytest.raises(Refused) as refused:
            await house.client(token).secrets(build.id, 1)
        assert refused.value.problem.slug == "not-allowed"


async def test_a_restarted_router_still_has_them(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        build = await house.submit(secrets=VALUES, if_nobody="wait")
    async with open_house(tmp_path) as house:
        runner = await house.runner()
        [grant] = (await runner.acquire()).grants

        assert grant.build_id == build.id
        assert await received(runner, grant) == VALUES


async def test_with_another_key_of_the_installation_they_are_lost_and_it_is_said(
    tmp_path: Path,
) -> None:
    async with open_house(tmp_path) as house:
        await house.submit(secrets=VALUES, if_nobody="wait")
    (tmp_path / "data/installation.key").write_text("another one")
    async with open_house(tmp_path) as house:
        runner = await house.runner()
        [grant] = (await runner.acquire()).grants
        with pytest.raises(Refused, match="cannot be read any more") as lost:
            await received(runner, grant)

    assert lost.value.problem.slug == "not-found"
    assert lost.value.problem.hint == "submit the build again"


async def test_a_secret_that_was_moved_to_another_name_does_not_open(house: House) -> None:
    runner = await house.runner()
    _, grant = await house.leased(runner, secrets={"one": b"1", "two": b"2"})
    with sqlite3.connect(house.data / "router.db") as database:
        swap = "UPDATE router_secrets SET locked = (SELECT locked FROM router_secrets WHERE "
        database.execute(swap + "secret_id = 'one') WHERE secret_id = 'two'")

    with pytest.raises(Refused, match="the secret two of"):
        await received(runner, grant)


@pytest.mark.parametrize(
    "able",
    [{"public_key": None}, {"isolation": "none"}],
    ids=["that is too old", "that does not isolate"],
)
async def test_a_runner_gets_no_build_with_secrets(house: House, able: dict[str, Any]) -> None:
    runner = await house.runner(**able)
    build = await house.submit(secrets=VALUES)

    assert (await runner.acquire()).grants == ()
    [rejection] = (await house.owner.why(build.id)).rejections
    assert "secrets" in rejection.reason


async def test_a_key_that_agrees_with_everybody_opens_no_session(house: House) -> None:
    runner = await house.runner()
    request = SessionRequest(
        process="p", boot_id="b", capabilities=capabilities(), public_key=bytes(32)
    )

    with pytest.raises(Invalid, match="public key"):
        await runner.client.open_session(request)


async def test_the_same_key_with_the_same_secrets_is_the_same_build(house: House) -> None:
    first = await house.submit(key="k", secrets=VALUES)

    assert (await house.submit(key="k", secrets=dict(reversed(VALUES.items())))).id == first.id
    for other in ({}, {**VALUES, "npm": b"canary-npm-valuf"}, {**VALUES, "more": b""}):
        with pytest.raises(Refused, match="was used for") as refused:
            await house.submit(key="k", secrets=other)
        assert refused.value.problem.slug == "key-reused"


async def test_the_largest_that_may_be_is_taken_and_a_byte_more_is_not(house: House) -> None:
    runner = await house.runner()
    half = SECRETS_BYTES_MAX // 2
    values = {"one": b"\0" * half, "two": b"\xff" * half}
    _, grant = await house.leased(runner, secrets=values)

    assert await received(runner, grant) == values
    with pytest.raises(Invalid, match="at most 512 KiB") as refused:
        await house.submit(secrets={**values, "three": b"x"})
    assert refused.value.problem.slug == "too-large"


async def test_a_hundred_secrets_are_taken(house: House) -> None:
    runner = await house.runner()
    values = {f"s{number}": b"%d" % number for number in range(100)}
    _, grant = await house.leased(runner, secrets=values)

    assert await received(runner, grant) == values


@pytest.mark.parametrize("name", ["../x", "a/b", ".", "", "x" * 129, "a,b", "a\n", "a=b"])
async def test_a_name_that_is_no_file_name_is_refused(house: House, name: str) -> None:
    with pytest.raises(PierheadError) as refused:
        await house.submit(secrets={name: b"canary-npm-value"})

    assert refused.value.problem.slug == "invalid-document"
    assert "canary" not in refused.value.problem.detail


async def test_a_plan_does_not_name_secrets_that_did_not_come(house: House) -> None:
    with pytest.raises(Invalid, match="names other secrets"):
        await house.submit(plan=Plan(secrets=("npm",)))


async def test_a_build_argument_that_looks_like_a_secret_is_refused_on_the_wire_too(
    house: House,
) -> None:
    plan = Plan(build_args={"NPM_TOKEN": "canary-npm-value"})

    with pytest.raises(Invalid, match="NPM_TOKEN looks like a secret") as refused:
        await house.submit(plan=plan)
    allowed = await house.submit(plan=plan, secret_args=True, if_nobody="wait")

    assert refused.value.problem.slug == "secret-argument"
    assert "canary" not in str(refused.value.problem)
    assert allowed.state == "queued"


@pytest.mark.parametrize("cut", [0, 9, 14])
async def test_what_a_runner_did_not_hide_is_hidden_here_and_the_log_is_still_whole(
    house: House, cut: int
) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner, secrets=VALUES)
    attempt = house.client(grant.token)
    log = b"it says canary-npm-value\n" + base64.b64encode(VALUES["npm"]) + b"\nend\n"
    failure = Failure(cause="command", message="no canary-npm-value", extract=(log.decode(),))
    for at, part in ((0, log[:cut]), (cut, log[cut:])):
        await attempt.append_log(build.id, 1, at, zstandard.compress(part))

    failed = Envelope(
        outcome="failed", failure=failure, log_bytes=len(log), log_digest=digest_of(log)
    )
    await attempt.report(build.id, 1, failed)

    view = await house.owner.build(build.id)
    shown = await house.owner.log(build.id)
    assert view.log_complete is True
    assert len(shown) == len(log)
    assert shown.startswith(b"it says ****************\n****")
    assert shown.endswith(b"\nend\n")
    for value in (b"canary-npm-value", base64.b64encode(VALUES["npm"])[:-3]):
        assert value not in written_below(house.data)
    assert view.result is not None
    assert "canary" not in str(view.result)


async def test_the_offsets_of_a_log_stay_what_they_were_when_something_is_hidden(
    house: House,
) -> None:
    runner = await house.runner()
    build, grant = await house.leased(runner, secrets=VALUES)
    attempt = house.client(grant.token)
    part = zstandard.compress(b"canary-npm-value and more")

    first = await attempt.append_log(build.id, 1, 0, part)
    again = await attempt.append_log(build.id, 1, 0, part)  # the answer was lost

    assert first.next_offset == again.next_offset == 25
    assert await house.owner.log(build.id, offset=16) == b" and more"


def test_a_request_does_not_show_its_secrets() -> None:
    context = {"digest": "sha256:" + "1" * 64, "size_bytes": 1, "unpacked_bytes": 1, "files": 1}
    request = Submit(project="web", plan=Plan(), context=context, secrets=VALUES)  # type: ignore[arg-type]

    assert "canary" not in repr(request)
    assert "npm" in repr(request)
