"""The builder over a scripted control plane: what a platform sees, whatever happens."""

import asyncio
import dataclasses
import pickle
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import get_args

import anyio
import pytest

import pierhead.router as public
from pierhead.router import (
    BuildCancelledError,
    BuildError,
    BuildFailedError,
    BuildId,
    BuildPolicy,
    BuildRequest,
    Cancelled,
    Cursor,
    DirectoryContext,
    Eligible,
    Event,
    Failed,
    FellBack,
    Finished,
    ImageInfo,
    IntegrityError,
    Log,
    NoRunnerError,
    NotBuilt,
    OnEvent,
    Outcome,
    Queued,
    RefusedError,
    Rejection,
    RoutedImageBuilder,
    RouterUnavailableError,
    Secret,
    Started,
    blocking,
)
from pierhead.router import builder as builders
from pierhead.router.builder import BuildExecutor
from pierhead.router.events import START
from pierhead.router.testing import ScriptedBuild, ScriptedExecutor, built
from tests.unit.house.tree import ROOT

REQUEST = BuildRequest(context=DirectoryContext(path=Path("src")), project="acme/web", key="4711")
OFFLINE = NotBuilt(
    reason="no-runner",
    rejected=(Rejection(runner="desktop", reason="offline since 14:02"),),
    detail="desktop is offline",
)
FOREVER = 3600.0


def always(outcome: Outcome) -> Callable[[BuildId, BuildRequest], Outcome]:
    return lambda _id, _request: outcome


class Local:
    """A platform's own builder."""

    def __init__(self) -> None:
        self.built: list[BuildRequest] = []

    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        self.built.append(request)
        return built(BuildId("local-1"), request).image


class Away(ScriptedExecutor):
    """A control plane that does not answer."""

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        raise RouterUnavailableError("no answer from https://build.example.com")


class Lost(ScriptedExecutor):
    """A control plane that takes the build and is not seen again."""

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        return LostBuild(BuildId("b_1"), request)


class LostBuild(ScriptedBuild):
    async def events(self, *, after: Cursor = START) -> AsyncGenerator[Event, None]:
        raise RouterUnavailableError("no answer", build_id=self.id)
        yield


class Asked(ScriptedExecutor):
    """Notes the policy that it was asked with."""

    policy: BuildPolicy | None = None

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> ScriptedBuild:
        self.policy = policy
        return await super().start(request, policy)


async def test_a_build_answers_like_a_local_builder_and_tells_what_happens() -> None:
    heard: list[Event] = []

    image = await RoutedImageBuilder(ScriptedExecutor()).build(REQUEST, on_event=heard.append)

    assert image.reference == f"build.example.com/acme/web@{image.digest}"
    assert [type(event) for event in heard] == [Queued, Started, Log, Finished]
    assert [event.cursor for event in heard] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("outcome", "error", "retryable"),
    [
        (
            Failed(
                cause="out-of-memory",
                step="6/9 RUN pnpm build",
                exit_code=137,
                extract=("Killed",),
                message="out of memory",
                hint="nodes set desktop --build-memory 6G",
            ),
            BuildFailedError,
            False,
        ),
        (Cancelled(by="the owner", reason="changed mind", proven=True), BuildCancelledError, False),
        (OFFLINE, NoRunnerError, True),
        (NotBuilt(reason="runners-lost"), NoRunnerError, True),
        (NotBuilt(reason="waited-too-long"), NoRunnerError, True),
        (NotBuilt(reason="integrity", detail="forged"), IntegrityError, False),
    ],
)
async def test_each_ending_is_caught_by_what_can_be_done(
    outcome: Outcome, error: type[BuildError], retryable: bool
) -> None:
    heard: list[Event] = []
    builder = RoutedImageBuilder(ScriptedExecutor(always(outcome)))

    with pytest.raises(error) as caught:
        await builder.build(REQUEST, on_event=heard.append)

    assert type(caught.value) is error
    assert caught.value.retryable is retryable
    assert caught.value.build_id == "b_1"
    assert heard[-1] == Finished(outcome=outcome, cursor=heard[-1].cursor)


async def test_a_failure_brings_its_lines_and_its_hint() -> None:
    failed = Failed(
        cause="command", step="3/4 RUN make", exit_code=2, extract=("no rule",), hint="look"
    )

    with pytest.raises(BuildFailedError) as caught:
        await RoutedImageBuilder(ScriptedExecutor(always(failed))).build(REQUEST)

    assert (caught.value.failure, caught.value.hint) == (failed, "look")


async def test_whoever_could_not_be_found_is_named() -> None:
    with pytest.raises(NoRunnerError, match="desktop is offline") as caught:
        await RoutedImageBuilder(ScriptedExecutor(always(OFFLINE))).build(REQUEST)

    assert caught.value.rejected == OFFLINE.rejected


# The last rung.


@pytest.mark.parametrize(
    "policy",
    [
        BuildPolicy(),
        BuildPolicy(if_nobody_can="build-here"),
        BuildPolicy(if_nobody_can="build-here-capped"),
    ],
)
@pytest.mark.parametrize("executor", [ScriptedExecutor(always(OFFLINE)), Away()], ids=["no", "-"])
async def test_the_platforms_own_builder_is_the_last_rung(
    executor: BuildExecutor, policy: BuildPolicy
) -> None:
    local, heard = Local(), list[Event]()
    builder = RoutedImageBuilder(executor, local=local, policy=policy)

    image = await builder.build(REQUEST, on_event=heard.append)

    assert image.build_id == "local-1"
    assert local.built == [REQUEST]
    assert isinstance(heard[-1], FellBack)
    assert heard[-1].to == "local"
    assert not any(isinstance(event, Finished) for event in heard), "it had not finished"


@pytest.mark.parametrize("said", ["wait", "fail"])
async def test_a_policy_against_it_keeps_the_local_builder_out(said: str) -> None:
    policy = BuildPolicy(if_nobody_can=said)  # type: ignore[arg-type]
    for executor in (ScriptedExecutor(always(OFFLINE)), Away()):
        local = Local()
        with pytest.raises((NoRunnerError, RouterUnavailableError)):
            await RoutedImageBuilder(executor, local=local, policy=policy).build(REQUEST)
        assert local.built == []


@pytest.mark.parametrize(
    "outcome",
    [
        NotBuilt(reason="integrity", detail="the digest is another"),
        Failed(cause="command", step=None, exit_code=1, extract=()),
        Cancelled(by="the owner", reason="", proven=True),
    ],
)
async def test_neither_a_forged_result_nor_a_real_end_is_a_reason_to_build_here(
    outcome: Outcome,
) -> None:
    local = Local()

    with pytest.raises(BuildError):
        await RoutedImageBuilder(ScriptedExecutor(always(outcome)), local=local).build(REQUEST)

    assert local.built == []


async def test_a_build_that_is_out_of_sight_is_not_built_twice() -> None:
    local = Local()

    with pytest.raises(RouterUnavailableError) as caught:
        await RoutedImageBuilder(Lost(), local=local).build(REQUEST)

    assert caught.value.build_id == "b_1"
    assert local.built == []


async def test_with_a_local_builder_the_control_plane_is_told_not_to_build_itself() -> None:
    for policy, asked in (
        (BuildPolicy(), "fail"),
        (BuildPolicy(if_nobody_can="build-here", patience=timedelta(seconds=9)), "fail"),
        (BuildPolicy(if_nobody_can="wait"), "wait"),
    ):
        executor = Asked()
        await RoutedImageBuilder(executor, local=Local(), policy=policy).build(REQUEST)
        assert executor.policy == replace(policy, if_nobody_can=asked)  # type: ignore[arg-type]
    alone = Asked()
    await RoutedImageBuilder(alone).build(REQUEST)
    assert alone.policy == BuildPolicy()


async def test_a_policy_of_local_asks_nobody() -> None:
    executor, local = ScriptedExecutor(), Local()

    await RoutedImageBuilder(executor, local=local, policy=BuildPolicy(on="local")).build(REQUEST)

    assert executor.builds == []
    assert local.built == [REQUEST]


# Cancellation.


async def running(executor: ScriptedExecutor, count: int = 1) -> ScriptedBuild:
    async with asyncio.timeout(20):
        while len(executor.builds) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return executor.builds[-1]


async def test_cancelling_the_task_cancels_the_build() -> None:
    executor = ScriptedExecutor(seconds=FOREVER)
    task = asyncio.create_task(RoutedImageBuilder(executor).build(REQUEST))
    build = await running(executor)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(build.ended, Cancelled)
    assert build.ended.reason == "the caller's task was cancelled"


async def test_a_cancelled_task_does_not_wait_for_a_control_plane_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mute(ScriptedBuild):
        async def cancel(self, reason: str) -> Outcome:
            await asyncio.Event().wait()
            raise AssertionError(reason)

    assert builders.CANCEL_SECONDS <= 5
    monkeypatch.setattr(builders, "CANCEL_SECONDS", 0.01)
    executor = ScriptedExecutor(seconds=FOREVER)
    task = asyncio.create_task(RoutedImageBuilder(executor).build(REQUEST))
    (await running(executor)).__class__ = Mute

    task.cancel()

    done, _ = await asyncio.wait({task}, timeout=25)
    assert done
    assert task.cancelled()


async def test_a_cancelled_scope_cancels_the_build() -> None:
    """anyio cancels again and again until the scope is left: the wish has to get out anyhow."""
    executor = ScriptedExecutor(seconds=FOREVER)

    with anyio.move_on_after(0.05) as scope:
        await RoutedImageBuilder(executor).build(REQUEST)

    assert scope.cancelled_caught
    assert isinstance(executor.builds[0].ended, Cancelled)


async def test_a_detached_task_leaves_its_build_running() -> None:
    executor = ScriptedExecutor(seconds=FOREVER)
    builder = RoutedImageBuilder(executor)
    task = asyncio.create_task(builder.build(REQUEST, when_cancelled="detach"))
    build = await running(executor)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert build.ended is None
    await build.cancel("end of the test")


async def test_a_listener_that_raises_ends_the_build_that_nobody_follows_any_more() -> None:
    executor = ScriptedExecutor(seconds=FOREVER)

    def hear(event: Event) -> None:
        raise OSError("the log table is full")

    with pytest.raises(OSError, match="full"):
        await RoutedImageBuilder(executor).build(REQUEST, on_event=hear)

    assert isinstance(executor.builds[0].ended, Cancelled)


# Keys and groups.


async def test_the_same_key_is_the_same_build_after_a_crash() -> None:
    executor = ScriptedExecutor()
    builder = RoutedImageBuilder(executor)
    first = await builder.start(REQUEST)

    again = await builder.start(replace(REQUEST))

    assert first.id == again.id
    assert len(executor.builds) == 1
    with pytest.raises(RefusedError, match="another request"):
        await builder.start(replace(REQUEST, target="other"))
    assert (await builder.start(replace(REQUEST, project="acme/shop"))).id != first.id


async def test_a_newer_build_of_the_group_ends_the_older_one() -> None:
    builder = RoutedImageBuilder(ScriptedExecutor(seconds=FOREVER))
    old = await builder.start(replace(REQUEST, key="1", supersedes="acme/web:main"))

    new = await builder.start(replace(REQUEST, key="2", supersedes="acme/web:main"))

    outcome = await old.outcome()
    assert outcome == Cancelled(by="a newer build", reason=f"replaced by {new.id}", proven=True)
    await new.cancel("end of the test")


async def test_a_build_is_found_by_its_id_and_asked_who_would_take_it() -> None:
    builder = RoutedImageBuilder(ScriptedExecutor())
    build = await builder.start(REQUEST)

    assert (await builder.attach(build.id)).id == build.id
    assert await builder.why(REQUEST) == (Eligible(runner="desktop"),)
    with pytest.raises(RefusedError):
        await builder.attach(BuildId("b_9"))


# Code without a loop.


def test_code_without_a_loop_uses_the_same_builder() -> None:
    heard: list[Event] = []

    with blocking(RoutedImageBuilder(ScriptedExecutor())) as builder:
        image = builder.build(REQUEST, on_event=heard.append)
        kinds = [type(event) for event in builder.events(replace(REQUEST, key="2"))]
        again = list(builder.events(BuildId("b_2"), after=Cursor("3")))
        assert builder.capabilities().executors == ("runners",)
        credentials = builder.pull_credentials(image, ttl=timedelta(minutes=5))

    assert [type(event) for event in heard] == kinds == [Queued, Started, Log, Finished]
    assert [type(event) for event in again] == [Finished]
    assert credentials.repository == "acme/web"
    assert "scripted" not in repr(credentials)


def test_code_without_a_loop_gets_the_same_errors() -> None:
    with (
        blocking(RoutedImageBuilder(ScriptedExecutor(always(OFFLINE)))) as builder,
        pytest.raises(NoRunnerError),
    ):
        builder.build(REQUEST)


# Values.


def test_a_secret_never_prints_and_is_not_pickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_TOKEN", "hunter2")
    (tmp_path / "key").write_bytes(b"hunter2\0\n")
    secrets = {
        "a": Secret(b"hunter2"),
        "b": Secret.from_env("NPM_TOKEN"),
        "c": Secret.from_file(tmp_path / "key"),
    }
    request = replace(REQUEST, secrets=secrets)

    assert "hunter2" not in f"{request} {secrets['a']} {secrets['a']!s} {secrets['b']!r}"
    assert secrets["a"] == secrets["b"] != secrets["c"]
    assert secrets["c"].reveal() == b"hunter2\0\n"
    assert secrets["a"] != b"hunter2"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(request)
    with pytest.raises(TypeError, match="unhashable"):
        hash(secrets["a"])


@pytest.mark.parametrize("kind", [*get_args(Event), *get_args(Outcome)])
def test_the_reference_names_each_event_and_outcome_with_its_fields(kind: type) -> None:
    page = (ROOT / "docs/reference/library.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| `{kind.__name__}` |")]

    fields = [field.name for field in dataclasses.fields(kind) if field.name != "cursor"]
    assert all(f"`{name}`" in row for name in fields)


def test_the_public_names_are_what_the_package_says_and_all_are_documented() -> None:
    exported = {name for name in vars(public) if not name.startswith("_")}
    modules = {name for name in exported if type(getattr(public, name)) is type(public)}

    assert set(public.__all__) == exported - modules
    for name in public.__all__:
        value = getattr(public, name)
        assert not isinstance(value, type) or value.__doc__, name


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"args": {"a=b": "c"}}, "a name in args has to be a name without an equals", "VERSION"),
        ({"args": {"": "c"}}, "a name in args has to be a name without an equals", "VERSION"),
        ({"args": {"A": "x" * 40_000}}, "args[] has to be a text, at most 32768 characters", ""),
        ({"labels": {"a\nb": "c"}}, "a name in labels has to be a name without an", "VERSION"),
        ({"key": ""}, "key has to be a text, from 1 to 128 characters", "deployment-17"),
        ({"project": "My App"}, "project has to be lowercase letters and digits", "acme/web"),
        ({"environment": "Preview"}, "environment has to be lowercase letters and", "preview"),
        ({"supersedes": ""}, "supersedes has to be a text, from 1 to 256", "acme/web:main"),
        ({"tags": ("v 1",)}, "tags[0] has to be letters, digits, dots", "1.2"),
        ({"platforms": ("amd64",)}, "platform has to be OS/ARCHITECTURE", "linux/amd64"),
        ({"target": ""}, "target has to be a text, from 1 to 256 characters", ""),
        ({"dockerfile": ""}, "dockerfile has to be a text, from 1 to 4096 characters", ""),
        ({"secrets": {"../npm": Secret(b"hunter2")}}, "a name in secrets has to be letters", "npm"),
        ({"secrets": {"npm": Secret(b"x" * 600_000)}}, "secrets are larger than 524288", ""),
    ],
)
async def test_a_request_of_another_form_is_refused_by_its_field_before_anything_begins(
    changes: dict[str, object], said: str, hint: str
) -> None:
    executor, local = ScriptedExecutor(), Local()
    builder = RoutedImageBuilder(executor, local=local)
    request = replace(REQUEST, **changes)  # type: ignore[arg-type]

    for call in (builder.start, builder.build, builder.why):
        with pytest.raises(RefusedError) as refused:
            await call(request)

        assert str(refused.value).startswith(said)
        assert refused.value.hint
        assert hint in refused.value.hint
        assert "hunter2" not in str(refused.value)
    assert executor.builds == []
