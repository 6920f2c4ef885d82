"""Images from a real buildah: what comes out, what is kept, what failures are called."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.protocol.plan import Plan
from pierhead.runner.ports import Broken, BuilderLostError, Built
from tests.integration.backend.conftest import BASE, Bench, call, write_context


async def test_an_image_comes_with_its_own_configuration_and_digest(bench: Bench) -> None:
    steps = 'ARG V\nRUN echo $V > /v\nLABEL a=b\nENV K=v\nEXPOSE 80\nCMD ["/bin/sh"]\n'
    attempt = bench.attempt(steps, plan=Plan(build_args={"V": "7"}, labels={"c": "d"}))

    built = await attempt.run()

    assert isinstance(built, Built)
    assert built.image.platform.manifest_digest == digest_of(built.image.manifest)
    assert built.image.config.cmd == ("/bin/sh",)
    assert "K=v" in built.image.config.env
    assert built.image.config.exposed_ports == ("80/tcp",)
    assert {"a": "b", "c": "d"}.items() <= built.image.config.labels.items()
    blobs = {path.name for path in (built.layout / "blobs/sha256").iterdir()}
    assert {layer.removeprefix("sha256:") for layer in built.image.platform.layers} <= blobs
    assert built.peak_memory_bytes


async def test_two_contexts_unpacked_apart_give_one_digest(bench: Bench) -> None:
    steps = "RUN mkdir /d; touch /d/x; ln -s x /d/y\nCOPY busybox /d/z\nRUN rm /d/x\n"
    first, second = bench.attempt(steps), bench.attempt(steps, slot=1)
    os.utime(second.order.context / "busybox", (1, 1))

    one, other = await first.run(), await second.run()

    assert isinstance(one, Built)
    assert isinstance(other, Built)
    assert one.image.platform == other.image.platform


async def test_the_second_build_takes_its_steps_from_the_cache(bench: Bench) -> None:
    first, second = bench.attempt("RUN touch /x\n"), bench.attempt("RUN touch /x\n")

    one = await first.run()
    assert (await first.stop()).clean
    other = await second.run()

    assert isinstance(one, Built)
    assert isinstance(other, Built)
    assert (one.cache.steps, one.cache.cached) == (4, 0)
    assert (other.cache.steps, other.cache.cached) == (4, 3)
    assert one.image.platform == other.image.platform


async def test_only_the_wanted_stage_is_the_image(bench: Bench) -> None:
    steps = "FROM base AS tools\nENV WHO=tools\nFROM base\nENV WHO=last\n"

    built = await bench.attempt(steps, plan=Plan(target="tools")).run()

    assert isinstance(built, Built)
    assert "WHO=tools" in built.image.config.env


async def test_names_of_stages_are_the_same_in_capitals_and_small(bench: Bench) -> None:
    steps = "FROM Base AS Tools\nRUN echo tool > /tool\nFROM BASE AS last\n"
    steps += "COPY --from=tools /tool /\nRUN --mount=from=TOOLS,target=/t cat /t/tool\nENV A=b\n"

    built = await bench.attempt(steps, plan=Plan(target="LAST")).run()

    assert isinstance(built, Built), built
    assert "A=b" in built.image.config.env


async def test_the_log_arrives_while_the_build_runs(bench: Bench) -> None:
    attempt = bench.attempt("RUN echo before; while ! test -e /bin/never; do sleep 1; done\n")
    building = asyncio.create_task(attempt.run())

    await attempt.until(b"\nbefore\n")

    assert not building.done()
    building.cancel()
    await asyncio.wait({building})
    assert (await attempt.stop()).clean


async def test_a_failing_command_says_its_step_its_code_and_its_last_words(bench: Bench) -> None:
    broken = await bench.attempt("RUN echo oh dear >&2; exit 7\n").run()

    assert isinstance(broken, Broken)
    assert (broken.failure.cause, broken.failure.exit_code) == ("command", 7)
    assert broken.failure.step is not None
    assert broken.failure.step.startswith("4/4 RUN echo")
    assert "oh dear" in broken.failure.extract


async def test_a_step_that_goes_on_after_the_limit_gives_an_image_with_a_warning(
    bench: Bench,
) -> None:
    steps = "RUN tail -c 400000000 /dev/zero > /dev/null || true\n"

    built = await bench.attempt(steps, memory_bytes=64 * 2**20).run()

    assert isinstance(built, Built)
    assert "memory limit" in built.warnings[0]


async def test_a_step_that_fails_beside_a_full_page_cache_is_not_out_of_memory(
    bench: Bench,
) -> None:
    steps = "RUN dd if=/dev/zero of=/big bs=1M count=150 2>/dev/null; exit 3\n"

    broken = await bench.attempt(steps, memory_bytes=64 * 2**20).run()

    assert isinstance(broken, Broken)
    assert (broken.failure.cause, broken.failure.exit_code) == ("command", 3)


async def test_a_fork_bomb_is_bounded_and_ended(bench: Bench) -> None:
    attempt = bench.attempt("RUN echo go; b() { b | b & }; b; sleep 600\n")
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\ngo\n")

    building.cancel()
    await asyncio.wait({building})

    assert (await attempt.stop()).clean


async def test_a_build_ends_with_its_time(bench: Bench) -> None:
    attempt = bench.attempt("RUN trap '' TERM; sleep 600\n", plan=Plan(timeout_seconds=3))

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause == "time"
    assert (await attempt.stop()).clean


async def test_a_base_image_that_cannot_be_had_is_called_so(bench: Bench) -> None:
    attempt = bench.attempt("FROM 127.0.0.1:1/nobody/nothing:1\nRUN true\n")

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause == "base-image"


@pytest.mark.parametrize("text", ["FROM base\nNONSENSE x\n", "FROM\n", "COPY nowhere /x\n"])
async def test_a_wrong_dockerfile_is_called_so(bench: Bench, text: str) -> None:
    broken = await bench.attempt(text).run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause == "dockerfile"


@pytest.mark.parametrize("name", ["missing", "../Dockerfile", "/etc/passwd", "link", "."])
async def test_a_dockerfile_outside_the_context_is_not_read(bench: Bench, name: str) -> None:
    attempt = bench.attempt("", plan=Plan(dockerfile=name))
    (attempt.order.context / "link").symlink_to("/etc/passwd")

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause == "dockerfile"
    assert attempt.groups == []


async def test_a_base_for_another_machine_is_refused(bench: Bench) -> None:
    attempt = bench.attempt("", plan=Plan(platform="linux/s390x"))

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause == "platform"


async def test_a_base_that_lies_about_its_machine_is_refused(bench: Bench) -> None:
    attempt = bench.attempt("FROM oci:foreign\nENV A=b\n")
    made = write_context(bench.folder / "foreign", BASE)
    own = Path(bench.folder / "own")
    command = ["buildah", "--root", str(own / "r"), "--runroot", str(own / "rr")]
    layout = attempt.order.context / "foreign"
    build = ["bud", "-q", "--arch", "s390x", "--isolation", "chroot", "--network", "host"]
    await call(*command, *build, "-t", "x", made)
    await call(*command, "push", "-q", "x", f"oci:{layout}")

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause in {"platform", "base-image"}
    shutil.rmtree(own, ignore_errors=True)


async def test_a_killed_buildah_is_not_the_builds_fault_and_leaves_nothing(bench: Bench) -> None:
    attempt = bench.attempt("RUN echo here; sleep 600\n")
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nhere\n")

    os.killpg(attempt.groups[0].pid, signal.SIGKILL)
    with pytest.raises(BuilderLostError):
        await building

    assert (await attempt.stop()).clean


async def test_hosts_limits_and_shared_memory_reach_the_steps(bench: Bench) -> None:
    plan = Plan(
        add_hosts=("db:10.1.2.3", "six:fd00::1"),
        shm_bytes=32 * 2**20,
        ulimits=("nofile=111:222",),
        pull=True,
    )

    log = await bench.log_of(
        "RUN cat /etc/hosts; df -k /dev/shm | tail -1; ulimit -n; ulimit -Hn\n", plan=plan
    )

    lines = [line.split() for line in log.splitlines()]
    assert ["10.1.2.3", "db"] in lines
    assert ["fd00::1", "six"] in lines
    assert ["shm", "32768"] in [line[:2] for line in lines]
    assert ["111"] in lines
    assert ["222"] in lines


@pytest.mark.parametrize(
    ("ignored", "dockerfile", "hidden"),
    [
        ("nothing\n", "Dockerfile", set()),
        ("Dockerfile*\n.dockerignore\n", "Dockerfile", {"Dockerfile", ".dockerignore"}),
        ("*\n!busybox\n", "Dockerfile", {"Dockerfile", ".dockerignore"}),
        (".*\n!.dockerignore\n", "Dockerfile", set()),
        ("docker\n", "docker/D [1] #", {"docker", "docker/D [1] #"}),
        ("docker/D*\n", "docker/D [1] #", {"docker/D [1] #"}),
    ],
)
async def test_what_only_we_need_is_in_no_image(
    bench: Bench, ignored: str, dockerfile: str, hidden: set[str]
) -> None:
    steps = "COPY . /all\nRUN cd /all; find . | sort; echo end\n"
    attempt = bench.attempt(steps, plan=Plan(dockerfile=dockerfile))
    context = attempt.order.context
    (context / dockerfile).parent.mkdir(exist_ok=True)
    (context / "Dockerfile").rename(context / dockerfile)
    (context / ".dockerignore").write_text(ignored)
    there = {str(path.relative_to(context)) for path in context.rglob("*")}

    built = await attempt.run()

    assert isinstance(built, Built), attempt.output.decode()
    said = attempt.output.decode().partition("\nend\n")[0].splitlines()
    assert {line.removeprefix("./") for line in said if line.startswith("./")} == there - hidden
    assert hidden <= there


async def test_a_step_cannot_copy_what_only_we_need(bench: Bench) -> None:
    attempt = bench.attempt("COPY Dockerfile /\n")
    (attempt.order.context / ".dockerignore").write_text("Dockerfile\n")

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert broken.failure.hint == "is it left out by .dockerignore?"
