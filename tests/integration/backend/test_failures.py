"""Builds that fail for real: each cause has its own sentence, from buildah's own words."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pierhead.protocol.plan import Plan
from pierhead.protocol.result import Failure
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import isolation
from pierhead.runner.adapters.process import ENVIRONMENT
from pierhead.runner.adapters.trial import Trial
from pierhead.runner.ports import Broken, BuilderLostError, Built
from tests.integration.backend.conftest import Attempt, Bench
from tests.ports import free_port
from tests.sight import said_of
from tests.small_disk import small_disk

AARCH64 = (183).to_bytes(2, "little")  # elf.h, EM_AARCH64
MACHINE = slice(18, 20)  # of an ELF header


async def failure_of(attempt: Attempt) -> Failure:
    built = await attempt.run()
    assert isinstance(built, Broken), attempt.output.decode()
    assert (await attempt.stop()).clean
    return built.failure


async def test_a_command_that_fails_and_one_that_is_not_there(bench: Bench) -> None:
    failed = await failure_of(bench.attempt("RUN echo one; echo two >&2; exit 7\n"))
    missing = await failure_of(bench.attempt("RUN nosuchcommand\n"))
    unstarted = await failure_of(bench.attempt('RUN ["/nope"]\n'))

    assert (failed.cause, failed.exit_code) == ("command", 7)
    assert failed.step == "4/4 RUN echo one; echo two >&2; exit 7"
    # buildah reads the two streams of a step from a pipe each: either line may come first.
    assert sorted(failed.extract) == ["one", "two"]
    assert missing.message == "a command was not found (exit code 127)"
    assert missing.extract == ("/bin/sh: nosuchcommand: not found",)
    assert unstarted.message == "/nope cannot be started: no such file or directory"


async def test_a_command_of_several_lines_that_fails(bench: Bench) -> None:
    """buildah's last words then have several lines, too."""
    steps = 'RUN ["/bin/sh", "-c", "echo one\\nSTEP=9/9\\nexit 3\\n"]\n'

    failed = await failure_of(bench.attempt(steps))

    assert (failed.cause, failed.exit_code) == ("command", 3)
    assert failed.message == "a command ended with exit code 3"
    assert failed.extract == ("one",)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("COPY nope* /x\n", "line 4: there is no nope* in the context"),
        ("ARG\n", "line 4: the instruction needs a value"),
        ("ONBUILD\n", "line 4: ONBUILD requires at least one argument"),
        ("RUN --mount=type=foo true\n", 'line 4: invalid mount type "foo"'),
    ],
)
async def test_a_wrong_dockerfile_is_told_by_the_name_that_people_have_for_it(
    bench: Bench, steps: str, said: str
) -> None:
    attempt = bench.attempt(steps, plan=Plan(dockerfile_named="../ops/web.Dockerfile"))

    failed = await failure_of(attempt)

    assert (failed.cause, failed.message) == ("dockerfile", f"../ops/web.Dockerfile, {said}")
    assert str(bench.folder) not in repr(failed)


async def test_a_step_that_prints_steps_does_not_become_them(bench: Bench) -> None:
    forged = "STEP 9/9: COPY --from=elsewhere a b"
    steps = (
        f"RUN echo '{forged}'; echo '--> Using cache 123'; echo '[2/2] {forged}'; printf end\n"
        "RUN echo last; exit 4\n"
    )
    attempt = bench.attempt(steps)

    failed = await failure_of(attempt)

    lines = attempt.output.decode().splitlines()
    assert failed.step == "5/5 RUN echo last; exit 4"
    assert f" {forged}" in lines
    assert f" [2/2] {forged}" in lines
    assert " --> Using cache 123" in lines
    assert [line for line in lines if line.startswith(("STEP 9", "[", "--> Using"))] == []
    # The step's last line had no end, and the builder's next one has a line of its own.
    assert [line[:9] for line in lines if line.startswith("STEP ")] == [
        f"STEP {number}/5:"[:9] for number in range(1, 6)
    ]
    assert b"\x1e" not in attempt.output


IMITATES = """\
RUN echo 'exec /bin/sh: exec format error'; echo 'write /x: No space left on device'; \
    echo 'panic: x'; echo '{}' >&2; exit 3
"""


@pytest.mark.parametrize(
    "said",
    [
        "error running container: from /run/pierhead/runtime creating container for [/bin/sh]: "
        "pierhead refuses the mount at /mnt: its source is a link that leads out",
        "Error: creating build container: initializing source docker://h.example/a: denied",
        "Error: secret required but no secret with id x found",
    ],
)
async def test_a_step_that_speaks_like_others_fails_by_itself(bench: Bench, said: str) -> None:
    attempt = bench.attempt(IMITATES.format(said))

    failure = await failure_of(attempt)

    assert f"\n{said}\n".encode() in attempt.output
    assert (failure.cause, failure.exit_code) == ("command", 3)


async def test_a_step_that_says_that_the_disk_is_full_does_not_fill_it(bench: Bench) -> None:
    failure = await failure_of(bench.attempt("RUN echo 'DISK QUOTA EXCEEDED'; exit 3\n"))

    assert (failure.cause, failure.message) == ("command", "a step filled a file system of its own")


async def test_a_step_that_takes_more_memory_than_it_may(bench: Bench) -> None:
    eats = "RUN echo begins; dd if=/dev/zero of=/dev/null bs=200M count=1\n"

    failure = await failure_of(bench.attempt(eats, memory_bytes=64 * 2**20))

    assert (failure.cause, failure.message) == ("out-of-memory", "out of memory")
    assert failure.detail is not None
    assert failure.detail.startswith("the build was killed at its limit of 67.1 MB (peak ")
    assert failure.extract[0] == "begins"


@pytest.fixture
def disk_of_48m(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "size=48m") as folder:
        yield folder


async def test_a_step_that_fills_the_runners_disk(disk_of_48m: Path, isolates: Path) -> None:
    bench = Bench(disk_of_48m, isolates)
    attempt = bench.attempt("RUN dd if=/dev/zero of=/big bs=1M count=100\n")

    failure = await failure_of(attempt)

    assert (failure.cause, failure.message) == ("disk-full", "the runner's disk is full")
    assert f" of 50.3 MB were free at {disk_of_48m}" in (failure.detail or "")
    assert failure.fault == "runner"  # no build can do with so little


async def test_what_did_not_begin_is_cleared_away_without_a_byte_of_disk(
    disk_of_48m: Path, isolates: Path
) -> None:
    attempt = Bench(disk_of_48m, isolates).attempt("")
    with contextlib.suppress(OSError), (disk_of_48m / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))

    proof = await attempt.stop()

    assert proof.clean, proof
    assert not attempt.order.work.exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "size=200m") as folder:
        yield folder


async def test_a_build_is_stopped_before_it_has_all_of_the_disk(disk: Path, isolates: Path) -> None:
    bench = Bench(disk, isolates)
    # In a hurry until it is nearly where it has to be stopped, then so slowly that whoever stops
    # it may be kept waiting for seconds.
    more = "dd if=/dev/zero bs=1M count=1 2>/dev/null >> /big"
    left = "$(df -k / | tail -1 | awk '{print $4}')"
    fills = f"RUN while [ {left} -gt 45000 ]; do {more}; done; while :; do {more}; sleep 1; done\n"

    building = asyncio.create_task(bench.attempt(fills, memory_bytes=None).run())
    least = shutil.disk_usage(disk).free
    while not building.done():
        least = min(least, shutil.disk_usage(disk).free)
        await asyncio.sleep(0.05)
    broken = await building

    assert isinstance(broken, Broken)
    assert least > 20 * 2**20
    assert broken.failure.cause == "disk-full"
    assert "; 41.9 MB are kept free for what else runs there" in (broken.failure.detail or "")
    assert (await bench.attempts[0].stop()).clean


async def test_a_step_with_too_many_processes_is_told_so(bench: Bench) -> None:
    bomb = "(i=0; while [ $i -lt 5000 ]; do sleep 300 & i=$((i+1)); done)"
    until_seen = "while ! test -e /seen; do :; done"
    attempt = bench.attempt(f"RUN {bomb}; {until_seen}; exit 1\n", memory_bytes=4 * 2**30)
    failing = asyncio.create_task(failure_of(attempt))
    cgroup = cgroups.cgroup_of(attempt.order.name)
    while not cgroup.is_crowded():
        assert not failing.done(), attempt.output.decode()
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)  # on this very loop, the backend looks more often
    one = next(pid for pid in cgroup.processes() if said_of(pid, "cmdline").startswith("sleep"))
    Path(f"/proc/{one}/root/seen").touch()

    failure = await failing

    assert (failure.cause, failure.message) == ("command", "too many processes (limit 4096)")


async def test_a_step_that_fills_only_its_shared_memory(bench: Bench) -> None:
    fills = "RUN dd if=/dev/zero of=/dev/shm/big bs=1M count=100\n"

    failure = await failure_of(bench.attempt(fills))

    assert (failure.cause, failure.message) == ("command", "a step filled a file system of its own")
    assert "the runner's disk has space" in (failure.detail or "")


async def test_a_build_that_takes_too_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = bench.attempt("RUN echo begins; sleep 600\n", plan=Plan(timeout_seconds=300))
    failing = asyncio.create_task(failure_of(attempt))
    await attempt.until(b"\nbegins\n")
    loop = asyncio.get_running_loop()
    now = loop.time

    with monkeypatch.context() as later:
        later.setattr(loop, "time", lambda: now() + 300)
        failure = await failing

    assert (failure.cause, failure.hint) == ("time", "allow more: --timeout 600")
    assert failure.extract == ("begins",)


async def test_a_program_for_another_platform(bench: Bench) -> None:
    attempt = bench.attempt('COPY other /other\nRUN ["/other"]\n')
    program = bytearray(Path("/bin/busybox").read_bytes())
    program[MACHINE] = AARCH64
    other = attempt.order.context / "other"
    other.write_bytes(program)
    other.chmod(0o755)

    failure = await failure_of(attempt)

    assert failure.cause == "platform"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("FROB x\n", 'Dockerfile, line 4: Unknown instruction: "FROB"'),
        ("COPY nope /x\n", "Dockerfile, line 4: there is no nope in the context"),
        ("COPY x\n", "Dockerfile, line 4: COPY requires at least one argument"),
        ("ENV a\n", "Dockerfile, line 4: ENV must have two arguments"),
        ("FROM a b\n", "Dockerfile, line 4: FROM requires either one argument, or three: FROM "
         "<source> [as <name>]"),
        ("COPY --from=no /x /y\n", "Dockerfile, line 4: COPY --from=no: no stage or image found "
         "with that name"),
    ],
)  # fmt: skip
async def test_a_wrong_dockerfile_by_its_line(steps: str, message: str, bench: Bench) -> None:
    failure = await failure_of(bench.attempt(steps))
    assert (failure.cause, failure.message) == ("dockerfile", message)


async def test_a_base_image_of_a_registry_that_is_not_there(bench: Bench) -> None:
    failure = await failure_of(bench.attempt("FROM registry.invalid/a/b:1\n"))

    assert failure.cause == "base-image"
    assert failure.message.startswith("registry.invalid cannot be reached from the runner")
    assert failure.hint == "is the name right, and is the runner online?"


async def test_a_name_alone_is_one_of_docker_hub(bench: Bench) -> None:
    failure = await failure_of(bench.attempt("FROM pierhead-invalid/nothing-of-that-name\n"))

    assert failure.cause == "base-image"
    assert failure.message.startswith("docker.io ")


@pytest.fixture
async def registries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[int, int]]:
    """Give the ports of two registries, of which the second wants a password."""
    monkeypatch.setattr(Trial, "_missing", lambda _: ["this machine's loopback counts"])
    (tmp_path / "passwords").write_text("")
    ports = free_port(), free_port()
    settings = "".join(
        f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n' for port in ports
    )
    (tmp_path / "registries.conf").write_text(settings)
    monkeypatch.setitem(ENVIRONMENT, "CONTAINERS_REGISTRIES_CONF", f"{tmp_path}/registries.conf")
    locked = f"auth: {{htpasswd: {{realm: x, path: {tmp_path / 'passwords'}}}}}\n"
    async with contextlib.AsyncExitStack() as started:
        for port, more in zip(ports, ("", locked), strict=True):
            await started.enter_async_context(_registry(tmp_path / str(port), port, more))
        yield ports


@contextlib.asynccontextmanager
async def _registry(folder: Path, port: int, more: str) -> AsyncIterator[None]:
    folder.mkdir()
    where = f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
    text = f"version: 0.1\n{where}http: {{addr: 127.0.0.1:{port}}}\n{more}"
    (folder / "config.yml").write_text(text)
    process = await asyncio.create_subprocess_exec(
        "docker-registry", "serve", folder / "config.yml",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            assert process.returncode is None
            await asyncio.sleep(0.05)
        yield
    finally:
        process.terminate()
        await process.wait()


async def test_a_base_image_that_a_registry_has_not_or_does_not_give(
    registries: tuple[int, int], tmp_path: Path, isolates: Path
) -> None:
    bench = Bench(tmp_path, isolates)
    opened, locked = (f"127.0.0.1:{port}" for port in registries)

    missing = await failure_of(bench.attempt(f"FROM {opened}/a/b:3\n"))
    private = await failure_of(bench.attempt(f"FROM {locked}/a/b:3\n"))

    assert missing.cause == private.cause == "base-image"
    assert missing.message == f"{opened} has no base image {opened}/a/b:3"
    assert private.message == (
        f"{locked} does not give the base image {locked}/a/b:3: it is private, or not there "
        "(no credential was tried)"
    )


@pytest.mark.parametrize("target", ["Dockerfile", "loop"])
async def test_a_dockerfile_that_is_a_link_to_itself_is_the_dockerfiles_fault(
    bench: Bench, target: str
) -> None:
    attempt = bench.attempt("")
    file = attempt.order.context / "Dockerfile"
    file.unlink()
    file.symlink_to(target)
    (attempt.order.context / "loop").symlink_to("Dockerfile")

    failure = await failure_of(attempt)

    assert failure.cause == "dockerfile"
    assert failure.message == "Dockerfile is a link that leads to no file of the context"


@pytest.mark.parametrize("which", [0, -1])
async def test_a_builder_that_is_killed_says_nothing_about_the_build(
    bench: Bench, which: int
) -> None:
    attempt = bench.attempt(
        "RUN echo Error: mine; echo here; while ! test -e /x; do sleep 1; done\n"
    )
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nhere\n")

    os.kill(sorted(buildahs_of(attempt))[which], 9)

    with pytest.raises(BuilderLostError):
        await building
    assert (await attempt.stop()).clean


@pytest.mark.parametrize(
    "runc",
    [
        "/no/runc",
        "/etc/passwd",  # no program
        "sh -c 'echo what is this; exit 1'",
    ],
)
async def test_a_runtime_that_cannot_be_run_says_nothing_about_the_build(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, runc: str
) -> None:
    broken = isolation._RUNTIME.replace("exec runc --log", f"exec {runc} --log")
    monkeypatch.setattr(isolation, "_RUNTIME", broken)
    attempt = bench.attempt("RUN echo never\n")

    with pytest.raises(BuilderLostError, match="the runtime of steps, runc, cannot be run"):
        await attempt.run()

    assert (await attempt.stop()).clean
    assert attempt.backend.lack() is not None  # it is looked at before anything else is built
    await attempt.backend.probe()
    assert attempt.backend.lack() is None


async def test_a_step_that_the_runtime_refuses_may_be_told_so_by_another_machine(
    bench: Bench,
) -> None:
    plan = Plan(ulimits=("nofile=4294967296:4294967296",))

    failure = await failure_of(bench.attempt("RUN true\n", plan=plan))

    assert (failure.cause, failure.fault) == ("command", "either")
    assert failure.message == "the step could not be started"
    assert "rlimit" in (failure.detail or ""), failure


def buildahs_of(attempt: Attempt) -> list[int]:
    """Return the processes of buildah: itself, and the one that waits for runc."""
    entrance = cgroups.cgroup_of(attempt.order.name).entrances[0]
    pids = [int(line) for line in (entrance / "cgroup.procs").read_text().split()]
    return [pid for pid in pids if said_of(pid, "comm").startswith("buildah")]


async def test_a_step_whose_process_is_killed_is_the_steps_failure(bench: Bench) -> None:
    failure = await failure_of(bench.attempt("RUN sh -c 'kill -9 $$'; exit $?\n"))

    assert (failure.cause, failure.exit_code) == ("command", 137)


@pytest.mark.parametrize(
    ("steps", "message", "hint"),
    [
        (
            "COPY <<EOF /x\nhello\nEOF\n",
            "Dockerfile has a here-document (<<), which this builder has not",
            "put its lines into a file of the context",
        ),
        (
            "RUN <<EOF\ntrue\nfalse\nEOF\n",
            "Dockerfile has a here-document (<<), which this builder has not",
            "put its lines into a file of the context",
        ),
        (
            "COPY --exclude=a busybox /b\n",
            "Dockerfile, line 4: this builder has no COPY --exclude",
            "leave it out",
        ),
        (
            "RUN --security=insecure true\n",
            "Dockerfile, line 4: this builder has no RUN --security",
            "leave it out",
        ),
    ],
)
async def test_what_this_builder_has_not_is_told_by_its_name(
    bench: Bench, steps: str, message: str, hint: str
) -> None:
    failure = await failure_of(bench.attempt(steps))

    assert (failure.cause, failure.message, failure.hint) == ("dockerfile", message, hint)


async def test_a_copy_that_is_linked_is_a_copy(bench: Bench) -> None:
    built = await bench.attempt("COPY --link busybox /linked\n").run()

    assert isinstance(built, Built)
