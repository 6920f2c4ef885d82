"""One image for two platforms, built by runners that are at home on each, read by real clients."""

import asyncio
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pierhead.protocol.build import BuildView
from pierhead.protocol.errors import PierheadError
from pierhead.protocol.result import Envelope, Failure, StopProof
from pierhead.router import (
    BuildRequest,
    DirectoryContext,
    Eligible,
    Event,
    Finished,
    Log,
    RoutedImageBuilder,
    RouterExecutor,
)
from tools.engine import own_engine

from .foreign import ForeignRunner
from .stage import BUSYBOX, PATIENCE_SECONDS, Stage, eventually, finished, stage

BOTH = "linux/amd64,linux/arm64"
# A step for one platform alone would need two Dockerfiles: only this machine's runner runs it.
SLEEPS = "FROM scratch\nCOPY busybox /bin/busybox\nCOPY busybox /bin/sh\nRUN busybox sleep 240\n"
BROKEN = Envelope(
    outcome="failed",
    failure=Failure(
        cause="command", message="too old", step="2/2 RUN make", extract=("no such compiler",)
    ),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that builds for any platform, as no step of it runs anything."""
    context = tmp_path / "web"
    context.mkdir()
    shutil.copy(BUSYBOX, context / "busybox")
    (context / "Dockerfile").write_text('FROM scratch\nCOPY busybox /busybox\nCMD ["/busybox"]\n')
    return context


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="ph-") as made:
        yield Path(made)


def skopeo(on: Stage, *arguments: str) -> str:
    login = ["--authfile", str(on.login / "config.json")]
    command = ["skopeo", arguments[0], *login, *arguments[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pull(docker: tuple[str, ...], platform: str, name: str) -> str:
    """Pull one platform, and return the architecture of what came."""
    arguments = ["pull", "-q", "--platform", platform, name]
    pulling = [*docker, *arguments]
    subprocess.run(pulling, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    inspect = [*docker, "inspect", "-f", "{{.Architecture}}", name]
    return subprocess.run(inspect, check=True, capture_output=True, text=True).stdout.strip()


async def pi(on: Stage, tmp_path: Path) -> ForeignRunner:
    """Let a runner for linux/arm64 join, beside the one of this machine."""
    runner = ForeignRunner(on=on, folder=tmp_path / "pi")
    runner.folder.mkdir()
    await runner.join()

    async def here() -> bool:
        async with on.client() as owner:
            runners = (await owner.capabilities()).runners
        return any(one.here and one.online for one in runners)

    what = "the builder on this machine is online"
    await eventually(here, within=PATIENCE_SECONDS, what=what)
    return runner


async def until(on: Stage, build_id: str, so: Callable[[BuildView], bool]) -> BuildView:
    async def found() -> BuildView | None:
        with suppress(PierheadError):
            async with on.client() as owner:
                view = await owner.build(build_id)
            return view if so(view) else None
        return None

    return await eventually(found, within=PATIENCE_SECONDS, what=f"{build_id} is as wanted")


def command(on: Stage, *arguments: str) -> "asyncio.Task[subprocess.CompletedProcess[str]]":
    return asyncio.create_task(asyncio.to_thread(on.run, *arguments))


async def test_one_command_builds_for_two_platforms_and_every_client_reads_the_image(
    tmp_path: Path, folder: Path, short_folder: Path
) -> None:
    async with stage(tmp_path) as on:
        runner = await pi(on, tmp_path)
        building = command(on, "build", "--platform", BOTH, "-t", "web:1.2", str(folder))
        grant = await runner.take()
        async with runner.holding(grant) as attempt:
            envelope = await runner.build(attempt, grant)
            await attempt.report(grant.build_id, grant.fence, envelope)
        done = await building
        assert done.returncode == 0, done.stderr
        name = f"127.0.0.1:{on.port}/web:1.2"
        index: dict[str, Any] = json.loads(
            skopeo(on, "inspect", "--raw", "--tls-verify=false", f"docker://{name}")
        )
        to = tmp_path / "copied"
        skopeo(on, "copy", "--all", "--src-tls-verify=false", f"docker://{name}", f"oci:{to}:web")
        pulled = {}
        with own_engine(short_folder, on.port, on.login) as engine:
            for platform in BOTH.split(","):
                pulled[platform] = await asyncio.to_thread(pull, engine.command, platform, name)
        listed = on.run("builds", "ls").stdout
        opened = on.run("builds", "ls", "--children").stdout
        shown = on.run("builds", "show", "@").stdout
        log = on.run("builds", "log", "@").stdout
        why = on.run("builds", "why", "@").stdout
        again = on.run("builds", "watch", "@").stderr

    reference = done.stdout.strip()
    assert done.stdout == f"{reference}\n"
    assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    platforms = [one["platform"] for one in index["manifests"]]
    assert platforms == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux"},
    ]
    copied = json.loads((to / "index.json").read_text())["manifests"][0]
    assert reference.endswith(copied["digest"]), "copied byte for byte"
    assert pulled == {"linux/amd64": "amd64", "linux/arm64": "arm64"}
    for line in (
        "where     linux/amd64  here   linux/amd64, ",
        "where     linux/arm64  pi   linux/arm64, 4 cores, ",
        " linux/arm64  2/3 COPY busybox /busybox",
        "note      linux/amd64  succeeded on here",
        f"image     linux/arm64  {index['manifests'][1]['digest']}",
        "web  2 platforms built on here, pi in ",
    ):
        assert line in done.stderr, done.stderr
    assert len(listed.splitlines()) == 2
    assert "here, pi" in listed
    rows = [line.split()[2] for line in opened.splitlines()[1:]]
    assert rows == ["linux/arm64", "linux/amd64", "1.2"]
    for manifest in index["manifests"]:
        assert manifest["digest"] in shown
    for text in (log, again):
        assert "linux/arm64  STEP 2/3: COPY busybox /busybox" in text
    assert "web wants linux/amd64, " in why
    assert "-> succeeded on pi" in why


async def test_a_program_builds_for_two_platforms_and_hears_which_event_is_whose(
    tmp_path: Path, folder: Path
) -> None:
    platforms = tuple(BOTH.split(","))
    wanted = BuildRequest(
        context=DirectoryContext(path=folder), project="web", platforms=platforms, key="k"
    )
    heard: list[Event] = []
    async with stage(tmp_path) as on:
        runner = await pi(on, tmp_path)
        builder = RoutedImageBuilder(RouterExecutor(on.url, token=on.token))
        who = await builder.why(wanted)
        building = asyncio.create_task(builder.build(wanted, on_event=heard.append))
        grant = await runner.take()
        async with runner.holding(grant) as attempt:
            envelope = await runner.build(attempt, grant)
            await attempt.report(grant.build_id, grant.fence, envelope)
        image = await building
        again = await builder.build(wanted)

    assert image.platforms == platforms
    assert {*image.by_platform} == {*platforms}
    assert image.reference.endswith(image.digest)
    assert image.digest not in image.by_platform.values()
    assert (image.config.architecture, image.built_on) == ("amd64", "here, pi")
    assert again == image, "the key is the build"
    assert Eligible(runner="pi") in who
    assert isinstance(heard[-1], Finished)
    for platform in platforms:
        logs = [event for event in heard if isinstance(event, Log) and event.platform == platform]
        offsets = [sum(len(log.data) for log in logs[:place]) for place in range(len(logs))]
        assert [log.offset for log in logs] == offsets
        assert b"STEP 2/3: COPY busybox /busybox" in b"".join(log.data for log in logs)


async def test_the_first_platform_that_fails_ends_the_other_one(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "Dockerfile").write_text(SLEEPS)
    async with stage(tmp_path) as on:
        runner = await pi(on, tmp_path)
        building = command(on, "build", "--platform", BOTH, str(folder))
        grant = await runner.take()
        parent = grant.build_id.partition("-")[0]
        async with runner.holding(grant) as attempt:
            await until(on, f"{parent}-1", lambda view: view.phase == "building")
            await attempt.report(grant.build_id, grant.fence, BROKEN)
        done = await building
        log = await command(on, "builds", "log", f"{parent}-2")
        async with on.client() as owner:
            whole, other = await owner.build(parent), await owner.build(f"{parent}-1")

    assert (done.returncode, done.stdout) == (1, "")
    assert "web failed at 2/2 RUN make on pi after " in done.stderr
    assert "linux/arm64: too old" in done.stderr
    assert "   > no such compiler" in done.stderr
    assert f"whole log: pierhead builds log {parent}-2" in done.stderr
    assert log.returncode == 0, log.stderr
    assert f"pierhead builds rerun {parent}\n" in done.stderr
    assert (whole.state, other.state) == ("failed", "cancelled")
    assert other.cancelled_by == "the build for linux/arm64"
    assert other.result is not None
    assert other.result.stop_proof is not None
    assert other.result.stop_proof.clean


async def test_a_cancel_stops_both_and_proves_it(tmp_path: Path, folder: Path) -> None:
    (folder / "Dockerfile").write_text(SLEEPS)
    async with stage(tmp_path) as on:
        runner = await pi(on, tmp_path)
        begun = await command(on, "build", "--detach", "--platform", BOTH, str(folder))
        build_id = begun.stdout.strip()
        grant = await runner.take()
        async with runner.holding(grant) as attempt:
            await until(on, f"{build_id}-1", lambda view: view.phase == "building")
            cancelling = command(on, "builds", "cancel", build_id)
            while not (await attempt.signals(grant.build_id, grant.fence)).cancel_requested:
                assert not cancelling.done(), cancelling.result().stderr
            ended = Envelope(outcome="cancelled", stop_proof=StopProof(took_ms=9))
            await attempt.report(grant.build_id, grant.fence, ended)
        done = await cancelling
        async with on.client() as owner:
            whole = await owner.build(build_id)

    assert done.returncode == 0, done.stderr
    assert "no process, mount or file of it is left" in done.stderr
    assert [child.state for child in whole.children] == ["cancelled", "cancelled"]


async def test_a_router_that_is_killed_between_two_results_joins_them_all_the_same(
    tmp_path: Path, folder: Path
) -> None:
    async with stage(tmp_path) as on:
        runner = await pi(on, tmp_path)
        begun = await command(on, "build", "--detach", "--platform", BOTH, "-t", "web", str(folder))
        build_id = begun.stdout.strip()
        grant = await runner.take()
        async with runner.holding(grant) as attempt:
            envelope = await runner.build(attempt, grant)
            await until(on, f"{build_id}-1", lambda view: view.state == "succeeded")
            async with on.client() as owner:
                half = await owner.build(build_id)
            await on.plane.kill()
            await on.start_plane()
            await attempt.report(grant.build_id, grant.fence, envelope)
        async with on.client() as owner:
            whole = await finished(owner, build_id)
        image = f"docker://127.0.0.1:{on.port}/web:latest"
        index = json.loads(skopeo(on, "inspect", "--raw", "--tls-verify=false", image))

    assert (half.state, half.reference) == ("leased", None)
    assert whole.state == "succeeded"
    assert len(index["manifests"]) == 2
    assert [child.state for child in whole.children] == ["succeeded", "succeeded"]
