"""A secret is found nowhere: the search, and the proof that the search finds one that leaks.

Real builds that succeed, fail, are cancelled and lose their runner; the value is printed, encoded
and kept in a variable by their steps.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pierhead.protocol.build import BuildView
from pierhead.router.attendance import noted_url
from tests.ports import free_port

from .leaks import Hunt
from .stage import (
    BUSYBOX,
    HELLO,
    PATIENCE_SECONDS,
    ROOT,
    Stage,
    eventually,
    finished,
    stage,
)

MOUNT = "RUN --mount=type=secret,id=npm,required=true"
USES = f"{MOUNT} T=$(cat /run/secrets/npm); echo $T; echo -n $T | base64; test -n $T"
WAITS = f"{USES}; echo here; sleep 600"
PACKAGES = {
    "protocol": ROOT / "packages/protocol/src/pierhead/protocol",
    "router": ROOT / "packages/router/src/pierhead/router",
    "runner": ROOT / "packages/runner/src/pierhead/runner",
}


@pytest.fixture
def value() -> bytes:
    return b"canary" + os.urandom(20).hex().encode()


@pytest.fixture
def source(value: bytes) -> Iterator[str]:
    """The option that names the value, which is in no file, argument or environment of ours."""
    with open(os.memfd_create("secret"), "wb") as file:
        file.write(value)
        file.flush()
        yield f"id=npm,src=/proc/{os.getpid()}/fd/{file.fileno()}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    context = tmp_path / "hello"
    context.mkdir()
    shutil.copy(BUSYBOX, context / "busybox")
    return context


@contextlib.asynccontextmanager
async def scene(folder: Path, more: dict[str, str] | None = None) -> AsyncIterator[Stage]:
    """A stage whose temporary files are below its own folder, too."""
    temporary = folder / "tmp"
    temporary.mkdir()
    async with stage(folder, more={"TMPDIR": str(temporary), **(more or {})}) as on:
        yield on


async def build(
    on: Stage, folder: Path, step: str, source: str
) -> "subprocess.CompletedProcess[str]":
    (folder / "Dockerfile").write_text(f"{HELLO}{step}\n")
    arguments = ["build", "--no-cache", "--progress", "plain", "--secret", source, str(folder)]
    return await asyncio.to_thread(on.run, *arguments)


async def begin(on: Stage, folder: Path, source: str) -> str:
    """Submit a build that waits in the step with the secret, and return its id when it is there."""
    (folder / "Dockerfile").write_text(f"{HELLO}{WAITS}\n")
    arguments = ["build", "--no-cache", "--detach", "--secret", source, str(folder)]
    submitted = await asyncio.to_thread(on.run, *arguments)
    build_id = submitted.stdout.strip()
    assert build_id, submitted.stderr

    async def at_work() -> bool:
        async with on.client() as owner:
            return b"\nhere\n" in await owner.log(build_id)

    await eventually(at_work, within=PATIENCE_SECONDS, what="the step with the secret runs")
    return build_id


def look_at_all(hunt: Hunt, on: Stage, *words: str) -> None:
    """Look at the disk, at what was printed, and at all that the control plane tells."""
    hunt.look_below(on.folder, Path("/dev/shm"), Path("/var/tmp"))
    for number, text in enumerate(words):
        hunt.look(f"printed {number}", text.encode())
    for command in (["builds", "show", "@", "--json"], ["builds", "log", "@"]):
        hunt.look(" ".join(command), on.run(*command).stdout.encode())


def pull(on: Stage, reference: str, to: Path) -> None:
    """Pull an image: its configuration and history, and all its layers."""
    login = ["--authfile", str(on.login / "config.json"), "--src-tls-verify=false"]
    command = ["skopeo", "copy", *login, f"docker://{reference}", f"oci:{to}:x"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)


async def test_a_secret_is_nowhere_after_a_build_and_after_one_that_failed(
    tmp_path: Path, folder: Path, value: bytes, source: str
) -> None:
    hunt = Hunt(value)
    async with scene(tmp_path) as on, hunt.watching():
        good = await build(on, folder, USES, source)
        pull(on, good.stdout.strip(), tmp_path / "pulled")
        look_at_all(hunt, on, good.stdout, good.stderr)
        bad = await build(on, folder, f"{USES}; exit 3", source)
        look_at_all(hunt, on, bad.stdout, bad.stderr)

    assert (good.returncode, bad.returncode) == (0, 1), good.stderr + bad.stderr
    assert good.stderr.count("***") >= 2  # so the steps really had it
    assert hunt.samples > 20
    assert hunt.found == set()


async def test_a_secret_is_nowhere_while_a_build_runs_and_after_it_was_cancelled(
    tmp_path: Path, folder: Path, value: bytes, source: str
) -> None:
    hunt = Hunt(value)
    async with scene(tmp_path) as on:
        async with hunt.watching():
            build_id = await begin(on, folder, source)
            look_at_all(hunt, on)
            cancelled = await asyncio.to_thread(on.run, "builds", "cancel", build_id)
            async with on.client() as owner:
                view = await finished(owner, build_id)
            look_at_all(hunt, on, cancelled.stdout, cancelled.stderr)
        mounts = Path("/proc/self/mounts").read_text()

    assert view.state == "cancelled"
    assert str(tmp_path) not in mounts
    assert hunt.found == set()


async def test_a_killed_runner_leaves_nothing_and_another_attempt_gets_the_secret_again(
    tmp_path: Path, folder: Path, value: bytes, source: str
) -> None:
    hunt = Hunt(value)
    async with scene(tmp_path) as on:
        desktop = await on.join("desktop")
        async with hunt.watching():
            build_id = await begin(on, folder, source)
            await desktop.kill()
            look_at_all(hunt, on)
            desktop.start()

            async def again() -> BuildView | None:
                async with on.client() as owner:
                    view = await owner.build(build_id)
                    at_work = b"\nhere\n" in await owner.log(build_id)
                return view if view.fence == 2 and at_work else None

            what = "the next attempt has the secret"
            second = await eventually(again, within=PATIENCE_SECONDS, what=what)

            async def swept() -> bool:
                return desktop.log.read_text().count("session.open") == 2

            await eventually(swept, within=PATIENCE_SECONDS, what="desktop is at work again")
            look_at_all(hunt, on)
            await asyncio.to_thread(on.run, "builds", "cancel", build_id)
            async with on.client() as owner:
                await finished(owner, build_id)
            look_at_all(hunt, on)
        mounts = Path("/proc/self/mounts").read_text()

    assert second.fence == 2
    assert str(tmp_path) not in mounts
    assert hunt.found == set()


@pytest.mark.usefixtures("nobody_named")
async def test_a_secret_in_the_environment_of_the_command_is_not_passed_on(
    tmp_path: Path, folder: Path, value: bytes
) -> None:
    (folder / "Dockerfile").write_text(f"{HELLO}{USES}; sleep 1\n")
    given, hunt = "id=npm,env=NPM_TOKEN", Hunt(value, besides=b"id=npm,env=NPM_TOKEN")
    on = Stage(tmp_path, free_port())
    # No control plane answers: the command starts one, and a runner, for this build.
    more = {"PIERHEAD_URL": "", "NPM_TOKEN": value.decode(), "TMPDIR": str(tmp_path)}

    async with hunt.watching():
        done = await asyncio.to_thread(on.run, "build", "--secret", given, str(folder), **more)

    assert done.returncode == 0, done.stderr
    assert "no control plane yet" in done.stderr

    async def ended() -> bool:
        return noted_url(tmp_path / "data") is None

    await eventually(ended, within=PATIENCE_SECONDS, what="the control plane has ended")
    hunt.look_below(tmp_path)
    assert hunt.samples > 20
    assert hunt.found == set()


async def test_the_search_sees_into_layers_configurations_and_contexts(
    tmp_path: Path, folder: Path, value: bytes, source: str
) -> None:
    step = f"{MOUNT} cp /run/secrets/npm /copied\nENV ONE={value.hex()}"
    hunt = Hunt(value)
    async with scene(tmp_path) as on:
        good = await build(on, folder, step, source)
        assert good.returncode == 0, good.stderr
        pull(on, good.stdout.strip(), tmp_path / "pulled")
        (folder / "Dockerfile").unlink()
        hunt.look_below(tmp_path)

    pulled = {found for found in hunt.found if "/pulled/blobs/" in found}
    assert len(pulled) == 2, hunt.found  # the layer with the file, and the configuration
    assert any("/storage/overlay/" in found for found in hunt.found)  # the runner's cache
    assert any("/data/blobs/" in found for found in hunt.found)  # registry, and packed context


@dataclass(frozen=True)
class Leak:
    """A mistake: in `file` of a package, `old` became `new`; and where the search must find it."""

    file: str
    old: str
    new: str
    where: tuple[str, ...]


LEAKS = [
    Leak(  # the submit is stored as it came
        "router/services/submit.py",
        "plan=plan, secrets={})",
        "plan=plan)",
        ("column router_builds.submit", "router.db-wal"),
    ),
    Leak(  # the values are kept, to compare them with those of a repeat
        "router/services/submit.py",
        "secrets_mac=self.vault.mac(build_id, secrets)",
        "secrets_mac=str(secrets)",
        ("column router_builds.secrets_mac",),
    ),
    Leak(  # buildah is given them by its environment, and that by a shell's command line
        "runner/adapters/commands.py",
        "await start_in(entrances, command,",
        "await start_in(entrances, ["
        '"env", *(f"{k}={v.decode()}" for k, v in secrets.items()), '
        """"sh", "-c", 'values=$1; shift; "$@"; exit $?', "sh", str(secrets), *command],""",
        ("cmdline of a process", "environ of a process"),
    ),
    Leak(  # they are in a temporary file
        "runner/adapters/commands.py",
        "process.stdin.write(msgspec.json.encode(secrets))",
        "process.stdin.write(msgspec.json.encode(secrets));"
        ' import os; open(os.environ["TMPDIR"] + "/given", "wb").write('
        "msgspec.json.encode(secrets))",
        ("tmp/given",),
    ),
    Leak(  # buildah copies them to the disk
        "runner/adapters/attempt.py",
        "            open_shelter(store)\n",
        "            pass\n",
        ("userdata/secrets/npm",),
    ),
    Leak(  # the log is not redacted
        "protocol/redact.py",
        "if data[start : start + SHORTEST] not in heads:",
        "if True:",
        ("1.log", "builds log @"),
    ),
]


def break_all(folder: Path) -> None:
    """Copy the packages, with all the mistakes in them."""
    for package, source in PACKAGES.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / "pierhead" / package, ignore=ignored)
    for leak in LEAKS:
        file = folder / "pierhead" / leak.file
        text = file.read_text()
        assert text.count(leak.old) == 1, f"its text is not once in {leak.file}"
        file.write_text(text.replace(leak.old, leak.new))


async def test_the_search_finds_a_secret_wherever_it_leaks(
    tmp_path: Path, folder: Path, value: bytes, source: str
) -> None:
    break_all(tmp_path / "broken")
    hunt = Hunt(value)
    async with scene(tmp_path, {"PYTHONPATH": str(tmp_path / "broken")}) as on, hunt.watching():
        build_id = await begin(on, folder, source)
        look_at_all(hunt, on)
        await asyncio.to_thread(on.run, "builds", "cancel", build_id)
        async with on.client() as owner:
            await finished(owner, build_id)

    wanted = {where for leak in LEAKS for where in leak.where}
    assert {where for where in wanted if not any(where in found for found in hunt.found)} == set()
