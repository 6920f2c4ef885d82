"""For tests of code that builds: a scripted control plane, and the contract of all builders.

`assert_image_builder_contract` asks of any `ImageBuilder` what ours promises; a platform runs it on
its own builder before the two are swapped.
"""

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pierhead.router.builder import Build, ImageBuilder, RoutedImageBuilder
from pierhead.router.errors import BuildCancelledError, BuildError, BuildFailedError, RefusedError
from pierhead.router.events import START, Cursor, Event, Finished, Log, Started
from pierhead.router.image import BuildId, ImageConfig, ImageInfo
from pierhead.router.outcome import Built, Cancelled, Failed, Outcome
from pierhead.router.request import BuildRequest, DirectoryContext
from pierhead.router.scripted import Script, ScriptedBuild, ScriptedExecutor, built

__all__ = [
    "ContractBroken",
    "Script",
    "ScriptedBuild",
    "ScriptedExecutor",
    "assert_image_builder_contract",
    "built",
    "contract_script",
]

GOOD: Final = """\
FROM scratch
COPY hello /hello
ENV GREETING=hello
WORKDIR /srv
EXPOSE 8080
LABEL contract=kept
CMD ["/hello"]
"""
MISSING: Final = "nothing-of-this-name"
BAD: Final = f"FROM scratch\nCOPY {MISSING} /\n"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
# A cancelled task may take 5 s to tell the control plane; a slow machine some more to notice. Less
# than a slow build takes, or its end would be taken for that of the task.
_CANCEL_SECONDS: Final = 25.0
_FIRST_EVENT_SECONDS: Final = 30.0


class ContractBroken(AssertionError):
    """The builder does not keep a promise; the text says which."""


def contract_script(build_id: BuildId, request: BuildRequest) -> Outcome:
    """Answer the contract's requests as a real builder would: a script for `ScriptedExecutor`."""
    assert isinstance(request.context, DirectoryContext)
    if MISSING in (request.context.path / request.dockerfile).read_text():
        text = f"COPY {MISSING}: no such file"
        return Failed(cause="dockerfile", step=None, exit_code=1, extract=(text,), message=text)
    config = ImageConfig(
        exposed_ports=("8080/tcp",),
        working_dir="/srv",
        env={"GREETING": "hello"},
        cmd=("/hello",),
        labels={"contract": "kept", **request.labels},
    )
    return built(build_id, request, config)


async def assert_image_builder_contract(
    builder: ImageBuilder,
    *,
    project: str = "contract",
    run: str = "1",
    slow: str | None = None,
) -> None:
    """Ask of a builder what every `ImageBuilder` promises, and of a routed one some more.

    The requests are tiny and need no base image. `run` is part of every key, so that a control
    plane that remembers keys can be asked twice. `slow` is a Dockerfile that takes half a minute;
    without one, promises about running builds are judged only as far as these builds run long
    enough. Files that it copies are next to it: `hello` and, if the machine has it, `busybox`.

    Raises:
        ContractBroken: and which promise.
    """
    with tempfile.TemporaryDirectory(prefix="pierhead-contract-") as folder:
        root = await asyncio.to_thread(_write_contexts, Path(folder), slow)
        case = _Case(builder=builder, root=root, project=project, run=run, is_slow=bool(slow))
        for promise in _PROMISES:
            await promise(case)
        if isinstance(builder, RoutedImageBuilder):
            for routed in _ROUTED_PROMISES:
                await routed(case, builder)


def _write_contexts(root: Path, slow: str | None) -> Path:
    busybox = Path("/bin/busybox")
    for name, dockerfile in {"good": GOOD, "bad": BAD, "slow": slow or GOOD}.items():
        (root / name).mkdir()
        (root / name / "Dockerfile").write_text(dockerfile)
        (root / name / "hello").write_text("hello\n")
        if busybox.is_file() and slow:
            (root / name / "busybox").write_bytes(busybox.read_bytes())
            (root / name / "busybox").chmod(0o755)
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A builder, and the requests that it is asked."""

    builder: ImageBuilder
    root: Path
    project: str
    run: str
    is_slow: bool

    def request(self, context: str, key: str, **changes: str) -> BuildRequest:
        """Return a request; each key is used for one promise."""
        wanted = BuildRequest(
            context=DirectoryContext(path=self.root / context),
            project=self.project,
            key=f"contract-{self.run}-{key}",
            labels={"asked": "yes"},
        )
        return replace(wanted, **changes)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Ear:
    """Hears events, and knows when the first came."""

    heard: list[Event] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, event: Event) -> None:
        self.heard.append(event)
        self.first.set()


def _require(kept: object, promise: str) -> None:
    if not kept:
        raise ContractBroken(promise)


# What every builder promises.


async def _an_image_is_named_by_its_digest_and_is_what_was_asked_for(case: _Case) -> None:
    ear = _Ear()
    image = await case.builder.build(case.request("good", "good"), on_event=ear.hear)
    _require(_DIGEST.match(image.digest), f"a digest is sha256 and 64 digits, not {image.digest}")
    by_digest = image.reference.endswith(f"@{image.digest}")
    _require(by_digest, f"the reference names the digest, not {image.reference}")
    config = image.config
    said = (config.exposed_ports, config.working_dir, config.cmd, config.env.get("GREETING"))
    wanted = (("8080/tcp",), "/srv", ("/hello",), "hello")
    _require(said == wanted, f"the configuration is what the Dockerfile says: {said}")
    labels = (config.labels.get("contract"), config.labels.get("asked"))
    _require(labels == ("kept", "yes"), f"labels of the Dockerfile and of the request: {labels}")
    inspected = image.to_docker_inspect()["Config"]["ExposedPorts"]
    _require(inspected == {"8080/tcp": {}}, f"to_docker_inspect says the same: {inspected}")
    _judge_events(ear.heard, image)
    await _an_asynchronous_listener_hears_as_well(case, bool(ear.heard))


def _judge_events(heard: list[Event], image: ImageInfo) -> None:
    """A builder may tell nothing; what it tells is in order and whole."""
    ends = [event for event in heard if isinstance(event, Finished)]
    _require(len(ends) <= 1, "Finished comes once")
    _require(not ends or heard[-1] is ends[0], "nothing follows Finished")
    if ends:
        outcome = ends[0].outcome
        _require(isinstance(outcome, Built), f"Finished says that it was built, not {outcome}")
        same = isinstance(outcome, Built) and outcome.image.digest == image.digest
        _require(same, "Finished names the image that is returned")
    _whole_log(heard)


def _whole_log(heard: list[Event]) -> bytes:
    log = b""
    for event in heard:
        if isinstance(event, Started):
            log = b""
        if isinstance(event, Log):
            _require(event.offset == len(log), f"the log has no gap at {len(log)}: {event.offset}")
            log += event.data
    return log


async def _an_asynchronous_listener_hears_as_well(case: _Case, speaks: bool) -> None:
    ear = _Ear()

    async def hear(event: Event) -> None:
        await asyncio.sleep(0)
        ear.hear(event)

    await case.builder.build(case.request("good", "async"), on_event=hear)
    _require(bool(ear.heard) == speaks, "a listener may be asynchronous")


async def _a_dockerfile_that_cannot_be_followed_is_the_users_failure(case: _Case) -> None:
    try:
        image = await case.builder.build(case.request("bad", "bad"))
    except BuildFailedError as error:
        _require(not error.retryable, "the same again fails again: it is not retryable")
        _require(error.failure.extract or error.failure.message, "a failure says why")
        return
    except BuildError as error:
        raise ContractBroken(f"BuildFailedError, not {type(error).__name__}: {error}") from error
    except Exception as error:
        raise ContractBroken(f"BuildFailedError, not {type(error).__name__}: {error}") from error
    raise ContractBroken(f"a Dockerfile that cannot be followed gives no image: {image.reference}")


async def _cancelling_the_task_ends_the_wait(case: _Case) -> None:
    request = case.request("slow", "cancel")
    await _cancel_at_the_first_event(case.builder.build, request)
    if isinstance(case.builder, RoutedImageBuilder):
        outcome = await (await case.builder.start(request)).outcome()
        ended = isinstance(outcome, Cancelled) or (isinstance(outcome, Built) and not case.is_slow)
        _require(ended, f"a task that is cancelled cancels its build, which is {outcome}")


async def _cancel_at_the_first_event(
    build: Callable[..., Awaitable[ImageInfo]], request: BuildRequest, **options: str
) -> None:
    ear = _Ear()
    task = asyncio.ensure_future(build(request, on_event=ear.hear, **options))
    first = asyncio.ensure_future(ear.first.wait())
    await asyncio.wait(
        {task, first}, timeout=_FIRST_EVENT_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    first.cancel()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
    _require(done, f"a task that is cancelled ends within {_CANCEL_SECONDS} s")
    if not task.cancelled():
        error = task.exception()
        _require(
            error is None or isinstance(error, BuildCancelledError),
            f"a task that is cancelled raises CancelledError, not {error!r}",
        )
        _require(not ear.heard or _has_ended(ear), "a task that is cancelled swallows nothing")


def _has_ended(ear: _Ear) -> bool:
    return isinstance(ear.heard[-1], Finished)


_PROMISES: Final = (
    _an_image_is_named_by_its_digest_and_is_what_was_asked_for,
    _a_dockerfile_that_cannot_be_followed_is_the_users_failure,
    _cancelling_the_task_ends_the_wait,
)


# What a routed builder promises besides: a build outlives its handle.


async def _the_same_key_is_the_same_build(case: _Case, builder: RoutedImageBuilder) -> None:
    request = case.request("good", "key")
    first, again = await builder.start(request), await builder.start(request)
    _require(first.id == again.id, "the same key is the same build")
    outcome = await again.outcome()
    _require(isinstance(outcome, Built), f"it is built, not {outcome}")
    _require(await first.outcome() == outcome, "both handles say the same of it")
    attached = await builder.attach(first.id)
    _require(await attached.outcome() == outcome, "it is found by its id")
    try:
        other = await builder.start(case.request("good", "key", target="other"))
    except RefusedError:
        return
    raise ContractBroken(f"a key of another request is refused, and gave {other.id}")


async def _an_unknown_build_is_refused(case: _Case, builder: RoutedImageBuilder) -> None:
    try:
        await builder.attach(BuildId("b_of-nobody"))
    except RefusedError:
        return
    raise ContractBroken("a build that nobody started is not found")


async def _events_go_on_at_a_cursor(case: _Case, builder: RoutedImageBuilder) -> None:
    build = await builder.start(case.request("good", "key"))
    whole = await _all(build)
    again = await _all(await builder.attach(build.id))
    told = [event for event in whole if event.cursor != START]
    _require(
        _kinds(told) == _kinds([e for e in again if e.cursor != START]), "a replay is the same"
    )
    for number, event in enumerate(whole):
        if event.cursor == START:
            continue
        rest = await _all(build, after=event.cursor)
        _require(
            _kinds(rest) == _kinds(whole[number + 1 :]), f"what follows {event.cursor} is whole"
        )
        _require(_bytes(rest) == _bytes(whole[number + 1 :]), f"no byte is lost at {event.cursor}")


async def _all(build: Build, *, after: Cursor = START) -> list[Event]:
    return [event async for event in build.events(after=after)]


def _kinds(events: list[Event]) -> list[str]:
    """Return the events in order; how a log is cut into pieces is nobody's business."""
    return [type(event).__name__ for event in events if not isinstance(event, Log)]


def _bytes(events: list[Event]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Log))


async def _a_newer_build_of_a_group_ends_the_older_one(
    case: _Case, builder: RoutedImageBuilder
) -> None:
    group = f"{case.project}:{case.run}"
    old = await builder.start(case.request("slow", "old", supersedes=group))
    new = await builder.start(case.request("good", "new", supersedes=group))
    outcome = await old.outcome()
    ended = isinstance(outcome, Cancelled) or (isinstance(outcome, Built) and not case.is_slow)
    _require(ended, f"a newer build of the group cancels the older one, which is {outcome}")
    newer = await new.outcome()
    _require(isinstance(newer, Built), f"the newer one is built, not {newer}")


async def _a_cancelled_build_has_ended(case: _Case, builder: RoutedImageBuilder) -> None:
    build = await builder.start(case.request("slow", "stop"))
    outcome = await build.cancel("the contract asks for it")
    ended = isinstance(outcome, Cancelled) or (isinstance(outcome, Built) and not case.is_slow)
    _require(ended, f"cancel ends the build, which is {outcome}")
    _require(not isinstance(outcome, Cancelled) or outcome.proven, "the stop is proven")


async def _a_detached_task_leaves_its_build(case: _Case, builder: RoutedImageBuilder) -> None:
    request = case.request("good", "detach")
    await _cancel_at_the_first_event(builder.build, request, when_cancelled="detach")
    outcome = await (await builder.start(request)).outcome()
    _require(isinstance(outcome, Built), f"a detached build goes on, and is {outcome}")


_ROUTED_PROMISES: Final = (
    _the_same_key_is_the_same_build,
    _an_unknown_build_is_refused,
    _events_go_on_at_a_cursor,
    _a_newer_build_of_a_group_ends_the_older_one,
    _a_cancelled_build_has_ended,
    _a_detached_task_leaves_its_build,
)
