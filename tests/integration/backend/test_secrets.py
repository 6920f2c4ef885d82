"""A secret is in the step that mounts it, in memory until then, and nowhere afterwards."""

import asyncio
import hashlib
import os
import zlib
from pathlib import Path

import pytest

from pierhead.protocol.plan import Plan
from pierhead.runner.adapters.buildah import BuildahBackend
from pierhead.runner.ports import Broken, BuilderLostError, Built
from tests.sight import all_below, written_below

from .conftest import Attempt, Bench, call

GZIP = zlib.MAX_WBITS | 16  # zlib.decompress, wbits
VALUE = b"canary-of-a-secret-%d" % os.getpid()
USES = "RUN --mount=type=secret,id=npm cat /run/secrets/npm | wc -c\n"
WAITS = "RUN --mount=type=secret,id=npm test -s /run/secrets/npm && echo here; sleep 600\n"


def with_secrets(bench: Bench, steps: str, **values: bytes) -> Attempt:
    return bench.attempt(steps, plan=Plan(secrets=tuple(values), no_cache=True), secrets=values)


def files_with(value: bytes, *folders: Path) -> list[Path]:
    """Return the files on disk that hold the value; what is mounted in memory is no disk."""
    found = []
    for folder in folders:
        for place, subfolders, names in os.walk(folder):
            subfolders[:] = [n for n in subfolders if not os.path.ismount(Path(place, n))]
            for path in (Path(place, name) for name in names):
                if path.is_file() and not path.is_symlink() and _holds(path, value):
                    found.append(path)
    return found


def _holds(path: Path, value: bytes) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # gone since it was listed
        return False
    # What is still being written has no end yet.
    packed = zlib.decompressobj(GZIP).decompress(data) if data[:2] == b"\x1f\x8b" else b""
    return value in data or value in packed


@pytest.mark.parametrize(
    "value",
    [b"", b"with\0nul\nand\r\nlines\n", bytes(range(256)) * 2000, b"x" * 512 * 1024],
    ids=["empty", "nul-and-lines", "500-kb-of-bytes", "as-large-as-may-be"],
)
async def test_a_step_reads_a_secret_byte_for_byte(bench: Bench, value: bytes) -> None:
    mount = "RUN --mount=type=secret,id=npm"
    steps = f"{mount} sha256sum /run/secrets/npm; stat -c %a:%u /run/secrets/npm\n"
    attempt = with_secrets(bench, steps, npm=value)

    built = await attempt.run()

    assert isinstance(built, Built), attempt.output.decode()
    assert hashlib.sha256(value).hexdigest().encode() in attempt.output
    assert b"400:0" in attempt.output
    assert (await attempt.stop()).clean


async def test_a_secret_that_is_called_like_a_variable_of_buildahs_is_not_that(
    bench: Bench,
) -> None:
    steps = "RUN --mount=type=secret,id=PATH cat /run/secrets/PATH | tr a-z A-Z\n"
    attempt = with_secrets(bench, steps, PATH=VALUE)

    assert isinstance(await attempt.run(), Built), attempt.output.decode()
    assert VALUE.upper() in attempt.output
    assert (await attempt.stop()).clean


async def test_a_step_that_asks_for_a_variable_has_it_and_no_other_step_does(bench: Bench) -> None:
    mount = "--mount=type=secret,id=npm,env=NPM_TOKEN"
    steps = (
        f"RUN {mount} \\\n  echo -n $NPM_TOKEN | tr a-z A-Z; sh -c 'echo; echo ${{#NPM_TOKEN}}'\n"
        "RUN echo [$NPM_TOKEN]\nENV AFTER=x\n"
        f"USER 1000\nRUN {mount} echo -n $NPM_TOKEN | tr a-z A-Z\n"
    )
    attempt = with_secrets(bench, steps, npm=VALUE)

    built = await attempt.run()

    assert isinstance(built, Built), attempt.output.decode()
    assert attempt.output.count(VALUE.upper()) == 2
    assert b"\n%d\n" % len(VALUE) in attempt.output
    assert b"\n[]\n" in attempt.output
    assert files_with(VALUE, bench.folder) == []
    assert not [one for one in built.image.config.env if "NPM" in one]


async def test_a_variable_for_a_step_without_a_shell_is_refused_with_its_line(
    bench: Bench,
) -> None:
    step = 'RUN --mount=type=secret,id=npm,env=X ["/bin/busybox", "true"]\n'
    broken = await with_secrets(bench, step, npm=VALUE).run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause == "dockerfile"
    assert broken.failure.message.startswith("Dockerfile, line 4: a step in brackets has no shell")


async def test_a_hundred_secrets_are_all_there(bench: Bench) -> None:
    values = {f"s{number}": b"value %d" % number for number in range(100)}
    mounts = " ".join(f"--mount=type=secret,id={name}" for name in values)
    attempt = with_secrets(bench, f"RUN {mounts} ls /run/secrets | wc -l\n", **values)

    assert isinstance(await attempt.run(), Built), attempt.output.decode()
    assert b"\n100\n" in attempt.output
    assert (await attempt.stop()).clean


async def test_a_step_without_the_mount_does_not_see_it(bench: Bench) -> None:
    steps = USES + "RUN ls /run/secrets /run/pierhead-secrets 2>&1; cat /proc/self/mounts; true\n"
    attempt = with_secrets(bench, steps, npm=VALUE)

    assert isinstance(await attempt.run(), Built), attempt.output.decode()
    assert b"pierhead-secrets:" in attempt.output  # of ls: no such file or directory
    assert b"ramfs" not in attempt.output


async def test_a_printed_secret_is_hidden_in_the_log_and_in_the_failure(bench: Bench) -> None:
    mount = "RUN --mount=type=secret,id=npm"
    steps = f"{mount} cat /run/secrets/npm; echo; base64 /run/secrets/npm; exit 3\n"
    attempt = with_secrets(bench, steps, npm=VALUE)

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert VALUE not in attempt.output
    assert attempt.output.count(b"***") >= 2
    assert VALUE.decode() not in str(broken)
    assert broken.failure.exit_code == 3


async def test_a_secret_that_was_not_given_is_named(bench: Bench) -> None:
    steps = "RUN --mount=type=secret,id=npm,required=true cat /run/secrets/npm\n"

    broken = await bench.attempt(steps).run()

    assert isinstance(broken, Broken)
    assert broken.failure.cause == "secret"
    assert "the Dockerfile needs the secret npm, which was not given" in broken.failure.message
    assert "--secret id=npm" in (broken.failure.hint or "")


async def test_nothing_of_a_secret_is_on_a_disk_while_its_step_runs_or_after(
    bench: Bench,
) -> None:
    attempt = with_secrets(bench, WAITS, npm=VALUE)
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nhere\n")

    during = files_with(VALUE, bench.folder)
    shelters = [path for path in all_below(bench.folder) if path.name == "overlay-containers"]
    mounted = [path for path in shelters if os.path.ismount(path)]
    in_memory = [path for path in mounted if VALUE in written_below(path)]
    building.cancel()
    await asyncio.gather(building, return_exceptions=True)
    proof = await attempt.stop()

    assert during == []
    assert in_memory  # so the search would have found it
    assert proof.clean, proof
    assert files_with(VALUE, bench.folder) == []


async def test_an_image_and_its_layers_do_not_hold_the_secret(bench: Bench) -> None:
    attempt = with_secrets(bench, USES, npm=VALUE)

    built = await attempt.run()

    assert isinstance(built, Built)
    assert files_with(VALUE, bench.folder) == []


async def test_what_a_killed_runner_left_in_memory_is_gone_after_the_next_start(
    bench: Bench,
) -> None:
    attempt = with_secrets(bench, WAITS, npm=VALUE)
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nhere\n")
    os.killpg(attempt.groups[0].pid, 9)
    with pytest.raises(BuilderLostError):
        await building
    shelter = bench.folder / "state/slot-0/web/storage/overlay-containers"
    assert os.path.ismount(shelter)

    proof = await BuildahBackend(bench.folder / "state", slots=2, memory_bytes=None).sweep()

    assert proof.clean, proof
    assert not os.path.ismount(shelter)
    slot = bench.folder / "state/slot-0/web"
    store = ["--root", f"{slot}/storage", "--runroot", f"{slot}/run"]
    assert await call("buildah", *store, "containers", "-q") == ""


async def test_after_a_power_cut_the_store_begins_anew(bench: Bench) -> None:
    assert isinstance(await with_secrets(bench, USES, npm=VALUE).run(), Built)
    slot = bench.folder / "state/slot-0/web"
    await call("umount", slot / "storage/overlay-containers")

    await BuildahBackend(bench.folder / "state", slots=2, memory_bytes=None).sweep()

    assert not (slot / "storage/overlay").exists()
    again = with_secrets(bench, USES, npm=VALUE)
    assert isinstance(await again.run(), Built)
    assert (await again.stop()).clean


async def test_the_cache_of_a_slot_outlives_a_build_with_secrets(bench: Bench) -> None:
    plain = "RUN echo kept\n"
    assert isinstance(await bench.attempt(plain).run(), Built)
    await with_secrets(bench, USES, npm=VALUE).run()
    for attempt in bench.attempts:
        await attempt.stop()

    assert "Using cache" in await bench.log_of(plain)
