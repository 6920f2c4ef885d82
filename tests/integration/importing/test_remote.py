"""A far control plane, as it is on bad days: cut, restarted, away, slow to be read, left alone."""

import asyncio
import io
import signal
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pierhead.router import (
    BuildCancelledError,
    BuildFailedError,
    BuildPolicy,
    Built,
    Cancelled,
    DirectoryContext,
    Event,
    Finished,
    GitContext,
    Log,
    NotBuilt,
    RefusedError,
    Rejection,
    RoutedImageBuilder,
    RouterExecutor,
    RouterUnavailableError,
    Secret,
    Started,
    TarContext,
    blocking,
)
from tests.acceptance.proxy import fault_proxy
from tests.acceptance.stage import Stage
from tests.integration.importing.conftest import DOCKERFILE, SLEEP, executor, request

CHATTY = (
    DOCKERFILE + 'RUN ["/bin/busybox", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo line $i; '
    '/bin/busybox sleep 0.5; done"]\n'
)


async def test_a_log_is_whole_whatever_is_cut_and_restarted_in_between(
    plane: Stage, tmp_path: Path
) -> None:
    await plane.join("desktop")
    builder = RoutedImageBuilder(executor(plane), policy=BuildPolicy(on="runners"))
    build = await builder.start(request(tmp_path / "src", CHATTY, no_cache=True))
    heard: list[Event] = []
    killed = False

    async for event in build.events():
        heard.append(event)
        if isinstance(event, Log) and b"line 3" in event.data and not killed:
            killed = True
            await plane.plane.stop(signal.SIGKILL)
            await plane.start_plane()

    assert killed
    assert isinstance(heard[-1], Finished)
    log, offset = b"", 0
    for event in heard:
        if isinstance(event, Started):
            log, offset = b"", 0
        if isinstance(event, Log):
            assert event.offset == offset
            log, offset = log + event.data, offset + len(event.data)
    assert isinstance(heard[-1].outcome, Built)
    for number in range(1, 9):
        assert log.count(b"line %d\n" % number) == 1


async def test_whoever_reads_slowly_slows_down_nothing_but_the_reading(
    plane: Stage, tmp_path: Path
) -> None:
    builder = RoutedImageBuilder(executor(plane))
    many = 'RUN ["/bin/busybox", "sh", "-c", "/bin/busybox seq 1 200000"]\n'
    wanted = request(tmp_path / "src", DOCKERFILE + many, key="slow-reader")
    build = await builder.start(wanted)
    events = build.events()
    log = b""

    async for event in events:
        if isinstance(event, Log):
            log = event.data
            break
    # Nobody reads on; the build ends all the same.
    outcome = await (await builder.attach(build.id)).outcome()
    assert isinstance(outcome, Built)
    async for event in events:
        log += event.data if isinstance(event, Log) else b""

    assert log.count(b"\n199999\n") == 1
    assert len(log) > 1_288_000


async def test_a_cancelled_task_ends_its_build_on_the_runner(plane: Stage, tmp_path: Path) -> None:
    builder = RoutedImageBuilder(executor(plane))
    wanted = request(tmp_path / "src", DOCKERFILE + SLEEP, key="k")
    started = asyncio.Event()
    task = asyncio.create_task(
        builder.build(wanted, on_event=lambda e: started.set() if isinstance(e, Log) else None)
    )
    await asyncio.wait_for(started.wait(), 60)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    outcome = await (await builder.start(wanted)).outcome()
    assert isinstance(outcome, Cancelled)
    assert outcome.proven
    assert outcome.reason == "the caller's task was cancelled"
    with pytest.raises(BuildCancelledError):
        await builder.build(wanted)


async def test_a_task_cancelled_while_its_build_is_submitted_leaves_none_behind(
    plane: Stage, tmp_path: Path
) -> None:
    """At whatever point of the start it comes: afterwards nothing runs that nobody asked for."""
    builder = RoutedImageBuilder(executor(plane))
    wanted = request(tmp_path / "src", DOCKERFILE + SLEEP)
    for milliseconds in (5, 40, 80, 120, 160, 200, 300):
        task = asyncio.create_task(builder.build(wanted))
        await asyncio.sleep(milliseconds / 1000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async with plane.client() as owner:
        left = (await owner.builds()).builds
        assert all(view.cancel_requested or view.state == "cancelled" for view in left)


async def test_a_control_plane_that_is_away_is_an_error_that_can_be_tried_again(
    tmp_path: Path,
) -> None:
    away = RouterExecutor("http://127.0.0.1:9", token="x", patience=timedelta(seconds=0.5))

    with pytest.raises(RouterUnavailableError) as caught:
        await RoutedImageBuilder(away).build(request(tmp_path / "src"))

    assert caught.value.retryable
    assert caught.value.build_id is None


async def test_a_lost_answer_to_the_submit_builds_once(plane: Stage, tmp_path: Path) -> None:
    asked: list[str] = []

    def cut(line: str) -> bool:
        asked.append(line)
        return line == "POST /api/builds" and asked.count(line) <= 2

    async with fault_proxy(plane.port, cut) as proxy:
        through = RouterExecutor(f"http://127.0.0.1:{proxy.port}", token=plane.token)
        image = await RoutedImageBuilder(through).build(request(tmp_path / "src"))

    async with plane.client() as owner:
        assert [view.id for view in (await owner.builds()).builds] == [image.build_id]


async def test_what_nobody_can_build_says_who_did_not_and_why(plane: Stage, tmp_path: Path) -> None:
    await plane.join("desktop")
    wanted = request(tmp_path / "src", platforms=("linux/riscv64",))
    builder = RoutedImageBuilder(executor(plane), policy=BuildPolicy(on="runners"))

    outcome = await (await builder.start(wanted)).outcome()

    assert isinstance(outcome, NotBuilt)
    assert outcome.reason == "no-runner"
    assert {one.runner for one in outcome.rejected} == {"desktop", "here"}
    why = await builder.why(wanted)
    assert {one.runner for one in why if isinstance(one, Rejection)} == {"desktop", "here"}


async def test_a_key_finds_the_same_files_again_and_refuses_others(
    plane: Stage, tmp_path: Path
) -> None:
    builder = RoutedImageBuilder(executor(plane))
    first = await builder.start(request(tmp_path / "one", key="k"))

    checked_out_again = await builder.start(request(tmp_path / "two", key="k"))
    assert checked_out_again.id == first.id
    with pytest.raises(RefusedError, match="another request") as caught:
        await builder.start(request(tmp_path / "two", DOCKERFILE + "EXPOSE 1\n", key="k"))
    assert caught.value.hint == "use a new key for a new request"


async def test_a_generated_dockerfile_travels_without_touching_the_folder(
    plane: Stage, tmp_path: Path
) -> None:
    folder = tmp_path / "src"
    wanted = request(folder)
    (folder / "Dockerfile").unlink()
    extra = {"Dockerfile": b"FROM scratch\nCOPY made/hello /\nEXPOSE 7\n", "made/hello": b"hi"}
    wanted = replace(wanted, context=DirectoryContext(path=folder, extra_files=extra))

    image = await RoutedImageBuilder(executor(plane)).build(wanted)

    assert image.config.exposed_ports == ("7/tcp",)
    assert sorted(path.name for path in folder.iterdir()) == ["busybox"]


async def test_a_tar_is_a_context_with_its_ignore_file(plane: Stage, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        files = {
            "Dockerfile": b"FROM scratch\nCOPY . /\nEXPOSE 7\n",
            ".dockerignore": b"left-out\n",
            "left-out": b"x",
            "kept/file": b"y",
        }
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("kept/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)

    async def opened() -> AsyncIterator[bytes]:
        data = packed.getvalue()
        for at in range(0, len(data), 700):
            yield data[at : at + 700]

    wanted = replace(request(tmp_path / "src"), context=TarContext(open=opened))
    image = await RoutedImageBuilder(executor(plane)).build(wanted)

    assert image.config.exposed_ports == ("7/tcp",)


@pytest.mark.parametrize("kind", ["escape", "through-a-link", "garbage", "device"])
async def test_a_tar_that_is_none_or_leaves_its_folder_is_refused(
    plane: Stage, tmp_path: Path, kind: str
) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo({"escape": "../outside", "device": "null"}.get(kind, "a"))
        if kind == "through-a-link":
            member.type, member.linkname = tarfile.SYMTYPE, str(tmp_path)
        if kind == "device":
            member.type = tarfile.CHRTYPE
        tar.addfile(member)
        if kind == "through-a-link":
            below = tarfile.TarInfo("a/outside")
            below.type, below.linkname = tarfile.SYMTYPE, "x"
            tar.addfile(below)

    async def opened() -> AsyncIterator[bytes]:
        yield b"not a tar" * 100 if kind == "garbage" else packed.getvalue()

    wanted = replace(request(tmp_path / "src"), context=TarContext(open=opened))
    with pytest.raises(RefusedError, match="tar"):
        await RoutedImageBuilder(executor(plane)).start(wanted)
    assert not (tmp_path / "outside").is_symlink()


async def test_what_is_not_taken_is_refused_with_what_to_do(plane: Stage, tmp_path: Path) -> None:
    builder = RoutedImageBuilder(executor(plane))
    git = GitContext(url="https://git.example/x", ref="main")

    for wanted, hint in (
        (replace(request(tmp_path / "src"), context=git), "DirectoryContext"),
        (replace(request(tmp_path / "src"), tags=("not a tag",)), None),
        (replace(request(tmp_path / "src"), project="NOT A NAME"), None),
        (replace(request(tmp_path / "src"), context=DirectoryContext(path=tmp_path / "no")), None),
    ):
        with pytest.raises(RefusedError) as caught:
            await builder.start(wanted)
        assert hint is None or hint in str(caught.value.hint)


async def test_a_secret_reaches_the_step_that_mounts_it_and_nothing_else(
    plane: Stage, tmp_path: Path
) -> None:
    seen = (
        DOCKERFILE + "RUN --mount=type=secret,id=npm "
        '["/bin/busybox", "sh", "-c", "/bin/busybox wc -c < /run/secrets/npm"]\n'
    )
    wanted = request(tmp_path / "src", seen, secrets={"npm": Secret(b"hunter2-hunter2")})
    heard: list[Event] = []

    await RoutedImageBuilder(executor(plane)).build(wanted, on_event=heard.append)

    log = b"".join(event.data for event in heard if isinstance(event, Log))
    assert b"\n15\n" in log
    assert b"hunter2" not in log
    assert b"hunter2" not in plane.logs().encode()


async def test_a_step_that_fails_is_shown_with_its_lines(plane: Stage, tmp_path: Path) -> None:
    broken = DOCKERFILE + 'RUN ["/bin/busybox", "cat", "/no-such-file"]\n'

    with pytest.raises(BuildFailedError) as caught:
        await RoutedImageBuilder(executor(plane)).build(request(tmp_path / "src", broken))

    failure = caught.value.failure
    assert failure.cause == "command"
    assert failure.exit_code == 1
    assert any("no-such-file" in line for line in failure.extract)


async def test_code_without_a_loop_builds_for_real(plane: Stage, tmp_path: Path) -> None:
    def build_in_a_thread() -> tuple[str, str]:
        with blocking(RoutedImageBuilder(executor(plane))) as builder:
            image = builder.build(request(tmp_path / "src", key="one"))
            kinds = [type(event).__name__ for event in builder.events(image.build_id)]
            return image.built_on, kinds[-1]

    assert await asyncio.to_thread(build_in_a_thread) == ("here", "Finished")
