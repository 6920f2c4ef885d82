"""Base images of other registries in real builds: through the router, by logins said once."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pierhead.protocol.build import BuildView
from pierhead.protocol.plan import Plan
from pierhead.protocol.registry import NewRegistry
from tests.acceptance.leaks import Hunt
from tests.acceptance.stage import BUSYBOX, Stage, finished, hello, stage, submit
from tests.integration.mirror.others import (
    PASSWORD,
    SOUGHT_PASSWORD,
    SOUGHT_USER,
    USER,
    docker_registry,
    push,
)
from tests.integration.router.stage import tiny_image

BASE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN echo "of the base" > /base
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stage, str]]:
    """A control plane that builds by itself, and docker-registry with a base image in it."""
    folder = tmp_path_factory.mktemp("registries")
    async with docker_registry(folder / "real") as host, stage(folder) as opened:
        async with opened.client() as owner:
            built = await ended(opened, BASE, key="base", project="base")
            assert built.state == "succeeded", built.result
            login = NewRegistry(host=host, username=USER, secret=PASSWORD, plain_http=True)
            await owner.add_registry(login)
        await asyncio.to_thread(copy, opened, f"{opened.port}/base@{digest(built)}", host)
        yield opened, host


def digest(view: BuildView) -> str:
    assert view.result is not None
    assert view.result.manifest_digest is not None
    return view.result.manifest_digest


def copy(opened: Stage, image: str, host: str) -> None:
    """Bring an image to docker-registry, as its owner would."""
    source, target = f"docker://127.0.0.1:{image}", f"docker://{host}/me/base:1"
    plain = ["--src-tls-verify=false", "--dest-tls-verify=false"]
    logins = [
        "--src-authfile",
        str(opened.login / "config.json"),
        "--dest-creds",
        f"{USER}:{PASSWORD}",
    ]
    done = subprocess.run(
        ["skopeo", "copy", *plain, *logins, source, target], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


async def ended(
    opened: Stage, dockerfile: str, *, key: str, project: str = "hello", plan: Plan | None = None
) -> BuildView:
    async with opened.client() as client:
        built = await submit(
            client, hello(dockerfile), key=key, project=project, plan=plan or Plan()
        )
        return await finished(client, built.id)


async def log_of(opened: Stage, view: BuildView) -> str:
    async with opened.client() as client:
        return (await client.log(view.id)).decode()


async def test_a_base_image_behind_a_login_is_had_without_one(place: tuple[Stage, str]) -> None:
    opened, host = place
    view = await ended(opened, f"FROM {host}/me/base:1\nRUN cat /base\n", key="private")
    assert view.state == "succeeded", await log_of(opened, view)
    assert "of the base" in await log_of(opened, view)


async def test_all_ways_to_name_an_image_lead_through_the_router(place: tuple[Stage, str]) -> None:
    opened, host = place
    dockerfile = f"""\
ARG WHERE=nowhere.invalid
FROM $WHERE/me/base:1 AS first
FROM scratch
COPY --from={host}/me/base:1 /base /copied
COPY --from={host}/me/base:1 /bin /bin
RUN --mount=type=bind,from={host}/me/base:1,target=/mnt cat /mnt/base
COPY --from=first /base /first
RUN cat /copied /first
"""
    view = await ended(opened, dockerfile, key="ways", plan=Plan(build_args={"WHERE": host}))
    assert view.state == "succeeded", await log_of(opened, view)
    assert (await log_of(opened, view)).count("of the base") == 3


async def test_an_image_of_the_own_registry_is_a_base_image(place: tuple[Stage, str]) -> None:
    opened, _ = place
    own = f"127.0.0.1:{opened.port}/base"
    async with opened.client() as client:
        known = (await client.builds(project="base")).builds[-1]
    by_digest = f"FROM {own}@{digest(known)}\nRUN cat /base\n"
    view = await ended(opened, by_digest, key="own", project="base")
    assert view.state == "succeeded", await log_of(opened, view)
    assert "of the base" in await log_of(opened, view)

    strange = await ended(opened, by_digest, key="strange", project="shop")
    assert strange.state == "failed"
    assert strange.result is not None
    assert strange.result.failure is not None
    assert strange.result.failure.cause == "base-image"


@pytest.mark.parametrize(
    ("image", "words", "hint"),
    [
        (
            "{host}/me/nothing:1",
            "has no {host}/me/nothing:1 (asked as me)",
            "name and the tag after FROM",
        ),
        ("127.0.0.1:1/x:1", "127.0.0.1 is in a private network", "registries add 127.0.0.1:1"),
    ],
)
async def test_an_image_that_is_not_to_be_had_is_told_with_registry_and_login(
    place: tuple[Stage, str], image: str, words: str, hint: str
) -> None:
    opened, host = place
    view = await ended(opened, f"FROM {image.format(host=host)}\n", key=image)
    assert view.state == "failed"
    assert view.result is not None
    failure = view.result.failure
    assert failure is not None
    assert failure.cause == "base-image"
    assert words.format(host=host) in failure.message
    assert hint in (failure.hint or "")


async def test_a_step_finds_no_login_and_the_relay_does_not_let_it_in(
    place: tuple[Stage, str],
) -> None:
    opened, host = place
    look = r"""
RUN (find / -xdev -type f 2>/dev/null | xargs cat 2>/dev/null; cat /proc/*/environ \
  /proc/*/cmdline /proc/mounts 2>/dev/null; env) > /dev/shm/all; \
  ! grep -a -q -e 'a[u]ths' -e 'registries[.]json' -e 'ph[b]_' /dev/shm/all
RUN port=$(awk '$4 == "0A" {split($2, a, ":"); print a[2]}' /proc/net/tcp | head -1); \
  echo "listens: $((0x$port))"; \
  wget -O - "http://127.0.0.1:$((0x$port))/v2/r1/me/base/manifests/1" 2>&1 | grep 401
"""
    view = await ended(opened, f"FROM {host}/me/base:1\n{look}", key="look")
    log = await log_of(opened, view)
    assert view.state == "succeeded", log
    assert "listens: 0\n" not in log


async def test_the_login_is_found_nowhere(tmp_path: Path) -> None:
    """Not on a disk, in a command line, an environment, a log or an answer."""
    hunt, token = Hunt(SOUGHT_PASSWORD.encode()), os.memfd_create("token")
    os.write(token, SOUGHT_PASSWORD.encode())
    place = tmp_path / "house"
    (place / "tmp").mkdir(parents=True)
    folder = tmp_path / "web"
    folder.mkdir()
    async with docker_registry(tmp_path / "real") as host:
        await push(host, "me/base", tiny_image("base"), "1")
        dockerfile = f"FROM {host}/me/base:1\nCOPY busybox /bin/busybox\n"
        (folder / "Dockerfile").write_text(dockerfile)
        (folder / "busybox").write_bytes(BUSYBOX.read_bytes())
        (folder / "busybox").chmod(0o755)
        async with stage(place, more={"TMPDIR": str(place / "tmp")}) as on, hunt.watching():
            login = ["--username", SOUGHT_USER, "--token-file", f"/proc/{os.getpid()}/fd/{token}"]
            added = await asyncio.to_thread(
                on.run, "registries", "add", host, *login, "--plain-http"
            )
            built = await asyncio.to_thread(on.run, "build", str(folder))
            for said in (added, built):
                assert said.returncode == 0, said.stderr
                hunt.look("printed", (said.stdout + said.stderr).encode())
            listed = await asyncio.to_thread(on.run, "registries", "ls", "--json")
            hunt.look("listed", listed.stdout.encode())
            hunt.look_below(place, Path("/dev/shm"), Path("/var/tmp"))
    os.close(token)
    assert hunt.samples > 20
    assert hunt.found == set()


async def test_after_the_registry_is_gone_a_build_goes_on_with_what_is_kept(
    place: tuple[Stage, str], tmp_path: Path
) -> None:
    opened, _ = place
    async with contextlib.AsyncExitStack() as stack:
        host = await stack.enter_async_context(docker_registry(tmp_path / "brief"))
        async with opened.client() as owner:
            login = NewRegistry(host=host, username=USER, secret=PASSWORD, plain_http=True)
            await owner.add_registry(login)
            known = (await owner.builds(project="base")).builds[-1]
        await asyncio.to_thread(copy, opened, f"{opened.port}/base@{digest(known)}", host)
        dockerfile = f"FROM {host}/me/base:1\nRUN cat /base\n"
        first = await ended(opened, dockerfile, key="up", project="one")
        assert first.state == "succeeded", await log_of(opened, first)
    second = await ended(opened, dockerfile, key="down", project="two")
    log = await log_of(opened, second)
    assert second.state == "succeeded", log
    assert f"note: {host} does not answer: {host}/me/base:1 is what it was at" in log
    assert second.result is not None
    assert any("does not answer" in warning for warning in second.result.warnings)
