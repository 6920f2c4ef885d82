"""A stopped build leaves nothing: not by its own word, but by what is found afterwards."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.buildah import BuildahBackend
from pierhead.runner.adapters.cgroup import cgroup_of
from pierhead.runner.ports import Built
from tests.integration.backend.conftest import Attempt, Bench, call
from tests.sight import all_below

# Found by its number: others may run the same tests on this machine.
SLEEP = f"sleep {10**7 + os.getpid()}"
# A child that ignores TERM, in a session of its own, whose parent is gone.
STUBBORN = f"RUN (setsid sh -c \"trap '' TERM HUP INT; while :; do {SLEEP}; done\" &); "


def found_by_looking(name: str, folder: Path) -> list[str]:
    """Return what is left of an attempt, by other means than those of the code under test."""
    found: list[str] = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(folder) in command or SLEEP in command:
                    found.append(command)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found += [line for line in mounts if str(folder) in line]
    found += [
        str(path)
        for path in all_below(Path("/sys/fs/cgroup"))
        if path.match(f"pierhead/{name}") or path.name.startswith("buildah-")
    ]
    end = networks.network_of(name).name
    saved = subprocess.run(["iptables-save"], check=True, capture_output=True, text=True).stdout
    found += [line for line in saved.splitlines() if end in line]
    found += [
        str(path)
        for path in (Path("/sys/class/net", end), Path("/run/netns", end))
        if path.exists()
    ]
    return found


def mounted_in(folder: Path) -> list[str]:
    """Return what is mounted below a folder; `ismount` knows of no folder mounted onto itself."""
    listed = Path("/proc/self/mounts").read_text().splitlines()
    # A blank is written as its octal number there.
    below = str(folder).replace(" ", "\\040") + "/"
    return [line for line in listed if line.split()[1].startswith(below)]


async def stopped_after(attempt: Attempt, seconds: float) -> list[str]:
    """Cancel a build after some time, stop it, and say what is left."""
    building = asyncio.create_task(attempt.run())
    await asyncio.wait({building}, timeout=seconds)
    building.cancel()
    await asyncio.wait({building})
    proof = await attempt.stop()
    assert proof.clean, proof
    assert not attempt.order.work.exists()
    return found_by_looking(attempt.order.name, attempt.order.work)


@pytest.mark.parametrize("seed", range(8))
async def test_a_build_that_is_stopped_at_any_moment_leaves_nothing(
    bench: Bench, seed: int
) -> None:
    attempt = bench.attempt(f"{STUBBORN}{SLEEP}\n")

    left = await stopped_after(attempt, random.Random(seed).uniform(0, 2.5))

    assert left == []


async def test_children_that_left_their_session_and_ignore_signals_end_too(bench: Bench) -> None:
    attempt = bench.attempt(f"{STUBBORN}echo started; {SLEEP}\n")
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nstarted\n")

    building.cancel()
    await asyncio.wait({building})
    proof = await attempt.stop()

    assert proof.clean, proof
    assert found_by_looking(attempt.order.name, attempt.order.work) == []


async def test_a_stop_leaves_the_neighbours_build_and_the_cache_alone(bench: Bench) -> None:
    stopped = bench.attempt(f"RUN echo one; {SLEEP}\n")
    going_on = bench.attempt(
        "RUN echo two; while ! nc -w 1 -l -p 9; do :; done; touch /x\n", slot=1
    )
    first, second = asyncio.create_task(stopped.run()), asyncio.create_task(going_on.run())
    await stopped.until(b"\none\n")
    await going_on.until(b"\ntwo\n")

    first.cancel()
    await asyncio.wait({first})
    assert (await stopped.stop()).clean

    assert not second.done()
    assert networks.network_of(going_on.order.name).path.exists()
    assert cgroup_of(going_on.order.name).processes()
    second.cancel()
    await asyncio.wait({second})
    again = bench.attempt("RUN true\n")
    await again.run()
    assert b"Using cache" in again.output


async def test_a_store_that_a_broken_builder_left_mounted_is_released(
    tmp_path: Path, isolates: Path
) -> None:
    folder = tmp_path / "a b"  # whose name is escaped in the list of mounts
    folder.mkdir()
    bench = Bench(folder, isolates)
    attempt = bench.attempt("RUN true\n")
    assert isinstance(await attempt.run(), Built), attempt.output.decode()
    (overlay,) = folder.rglob("storage/overlay")
    await call("mount", "--bind", overlay, overlay)

    proof = await attempt.stop()

    assert proof.clean, proof
    assert mounted_in(folder) == []
    assert found_by_looking(attempt.order.name, attempt.order.work) == []


async def test_a_store_stays_released_though_a_killed_builder_had_a_layer_mounted(
    bench: Bench,
) -> None:
    """buildah notes that in its store, and from then on leaves the store mounted when it ends."""
    attempt = bench.attempt("RUN true\n")
    assert isinstance(await attempt.run(), Built), attempt.output.decode()
    home = bench.folder / "state/slot-0/web"
    layers = json.loads((home / "storage/overlay-layers/layers.json").read_bytes())
    merged = home / "storage/overlay" / layers[0]["id"] / "merged"
    noted = [{"id": layers[0]["id"], "path": str(merged), "count": 1}]
    (home / "run/overlay-layers/mountpoints.json").write_text(json.dumps(noted))

    for _ in range(2):
        proof = await attempt.stop()

        assert proof.clean, proof
        assert mounted_in(bench.folder) == []


async def test_a_sweep_removes_what_a_killed_runner_left(bench: Bench) -> None:
    attempt = bench.attempt(f"{STUBBORN}echo started; {SLEEP}\n")
    order = attempt.order
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from pierhead.protocol.plan import Plan\n"
        "from pierhead.runner.adapters.buildah import BuildahBackend\n"
        "from pierhead.runner.ports import BuildOrder\n"
        "state, work, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]\n"
        "order = BuildOrder(name=name, slot=0, project='web', context=work / 'context', "
        "work=work, plan=Plan())\n"
        "write = lambda data: (sys.stdout.buffer.write(data), sys.stdout.flush())\n"
        "backend = BuildahBackend(state, slots=1, memory_bytes=None)\n"
        "asyncio.run(backend.build(order, write, print))\n"
    )
    state = bench.folder / "state"
    runner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        state,
        order.work,
        order.name,
        stdout=asyncio.subprocess.PIPE,
    )
    assert runner.stdout is not None
    async for line in runner.stdout:
        if line == b"started\n":
            break
    os.kill(runner.pid, signal.SIGKILL)
    await runner.wait()
    assert found_by_looking(order.name, order.work) != []

    proof = await BuildahBackend(state, slots=1, memory_bytes=None).sweep()

    assert proof.clean, proof
    assert found_by_looking(order.name, order.work) == []
