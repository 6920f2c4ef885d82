"""A step must not see, kill or reach this machine, its network, or another build."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pierhead.protocol.plan import Plan
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import isolation
from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.buildah import BuildahBackend
from pierhead.runner.adapters.isolation import Room
from pierhead.runner.adapters.process import run
from pierhead.runner.domain.invocation import Store
from pierhead.runner.ports import Broken, Built
from tests.integration.backend.conftest import Bench

IPV6 = Path("/proc/net/if_inet6")


@asynccontextmanager
async def listening(host: str) -> AsyncIterator[int]:
    """Be a server of this machine that greets whoever comes."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"REACHED\n")
        writer.close()

    server = await asyncio.start_server(greet, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def own_address() -> str:
    """Return the address by which this machine speaks to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.99", 9))
        return str(probe.getsockname()[0])


async def test_the_machine_says_that_it_isolates(bench: Bench) -> None:
    capabilities = await bench.backend.probe()

    assert capabilities.isolation == "full"
    assert capabilities.backend.startswith("buildah 1.")
    assert capabilities.networks == ("default", "none")


async def test_a_step_sees_no_process_but_its_builds_own(bench: Bench) -> None:
    log = await bench.log_of("RUN echo saw $(ls -d /proc/[0-9]* | wc -l)\n")

    seen = int(log.partition("\nsaw ")[2].split()[0])
    assert seen <= 4


async def test_a_step_that_kills_all_it_can_kills_nothing_of_the_machine(bench: Bench) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        log = await bench.log_of(
            f"RUN kill -9 {bystander.pid} || echo missed; kill -9 -1 || true\n"
        )

        assert "\nmissed\n" in log
        assert bystander.returncode is None
    finally:
        bystander.kill()
        await bystander.wait()


async def test_a_step_reaches_no_server_of_the_machine(bench: Bench) -> None:
    gateway = "$(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')"
    try_it = "nc -w 2 {} {} </dev/null || echo refused"
    async with listening("127.0.0.1") as inner, listening("0.0.0.0") as outer:
        tries = [
            try_it.format("127.0.0.1", inner),
            try_it.format(gateway, outer),
            try_it.format(own_address(), outer),
            try_it.format("169.254.169.254", 80),
        ]
        log = await bench.log_of(f"RUN {'; '.join(tries)}\n")

    assert "\nREACHED" not in log
    assert log.count("\nrefused") == 4


async def test_a_step_reaches_no_server_of_the_machine_by_ipv6(bench: Bench) -> None:
    attempt = bench.attempt("RUN echo up; while ! test -e /never; do sleep 1; done\n")
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nup\n")

    # The host's end has no IPv6 address, so there is none to be reached.
    end = networks.network_of(attempt.order.name)
    with_addresses = [line.split()[-1] for line in IPV6.read_text().splitlines()]
    assert end.link.exists()
    assert end.name not in with_addresses
    building.cancel()
    await asyncio.wait({building})
    assert (await attempt.stop()).clean


async def test_a_step_does_not_reach_a_neighbouring_build(bench: Bench) -> None:
    serving = bench.attempt(
        "RUN ip addr; echo ready; while true; do echo REACHED | nc -l -p 8000; done\n"
    )
    building = asyncio.create_task(serving.run())
    await serving.until(b"\nready\n")
    address = serving.output.decode().partition("inet 100.")[2].split("/")[0]
    neighbour = bench.attempt(
        f"RUN nc -w 2 100.{address} 8000 </dev/null || echo refused\n", slot=1
    )

    await neighbour.run()

    assert b"\nrefused\n" in neighbour.output
    building.cancel()
    await asyncio.wait({building})
    assert (await serving.stop()).clean


async def test_a_step_without_network_has_only_a_loopback(bench: Bench) -> None:
    log = await bench.log_of("RUN echo links $(ls /sys/class/net)\n", plan=Plan(network="none"))

    assert "\nlinks lo\n" in log


LEADS_OUT = {
    "a link in a stage": "FROM base AS trap\nRUN ln -s {} /way-out\nFROM base\n"
    "RUN --mount=type=bind,from=trap,source=/way-out,target=/mnt,rw ",
    "a folder that is a link in a stage": "FROM base AS trap\nRUN ln -s {} /way-out\nFROM base\n"
    "RUN --mount=type=bind,from=trap,source=/way-out/.,target=/mnt,rw ",
    "a link in the context": "RUN --mount=type=bind,source=way-out,target=/mnt,rw ",
    "a link that a step left in a cache": "RUN --mount=type=cache,id=a,target=/c ln -s {} /c/b\n"
    "RUN --mount=type=cache,id=a/b,target=/mnt ",
    "the name of a cache": "RUN --mount=type=cache,id=../../../{},target=/mnt ",
}


@pytest.mark.parametrize(
    ("how", "whereto"),
    [
        *((how, "/") for how in LEADS_OUT),
        *(("a link in a stage", to) for to in ("/proc", "/sys/fs/cgroup", "/dev", "STORAGE")),
    ],
)
async def test_a_mount_that_leads_out_is_refused_before_its_step(
    bench: Bench, how: str, whereto: str
) -> None:
    storage = str(bench.folder / "state/slot-0/web/storage")
    whereto = storage if whereto == "STORAGE" else whereto
    attempt = bench.attempt(f"{LEADS_OUT[how].format(whereto)} ls /mnt; echo $((7000 + 77))\n")
    (attempt.order.context / "way-out").symlink_to(whereto)

    broken = await attempt.run()

    assert isinstance(broken, Broken)
    assert b"7077" not in attempt.output
    assert broken.failure.cause == "dockerfile"
    assert broken.failure.message == "the source of the mount at /mnt leads out of where it may be"


async def test_what_a_step_may_mount_can_be_mounted(bench: Bench) -> None:
    log = await bench.log_of(
        "FROM base AS other\nRUN echo of-a-stage > /file && mkdir /d && ln -s /file /d/inner\n"
        "FROM base\nVOLUME /v\n"
        "RUN --mount=type=bind,from=other,source=/d/../file,target=/one "
        "--mount=type=bind,from=other,target=/two,rw --mount=type=bind,target=/three "
        "--mount=type=cache,id=x/y,target=/four --mount=type=tmpfs,target=/five "
        "cat /one && touch /two/x /four/x /five/x /v/x && test -s /three/Dockerfile && echo end\n"
    )

    assert "\nof-a-stage\n" in log
    assert "\nend\n" in log


async def seen_by_buildah(folder: Path, script: str) -> str:
    """Run a script where buildah runs, and return what it wrote."""
    (folder / "context").mkdir()
    store = Store.below(str(folder / "store"))
    for place in (store.root, store.run, store.runtime):
        Path(place).mkdir(parents=True)
    for name in ("tmp", "room", "notes"):
        (folder / name).mkdir()
    for file in (store.ignore, store.policy):
        Path(file).touch()
    room = Room(
        folder=folder / "room",
        store=store,
        work=folder / "context",
        context=folder / "context",
        notes=folder / "notes",
        temporary=folder / "tmp",
        word="x",
    )
    name = f"b_room{os.getpid()}.1"  # others may run the same tests
    cgroup = cgroups.open_cgroup(name, memory_bytes=None, cpu_weight=None)
    network = networks.network_of(name)
    await networks.open_network(network)
    try:
        ended = await run(*isolation.enter(network.path, room, cgroup), "sh", "-c", script)
    finally:
        await networks.close_network(network)
        await cgroup.remove()
    return ended.output


async def test_what_buildah_sees_of_the_machine_cannot_be_changed(tmp_path: Path) -> None:
    """Should a fault of buildah hand a step its root: there is nothing in it to be had."""
    pattern = "/proc/sys/kernel/core_pattern"
    said = await seen_by_buildah(
        tmp_path,
        f"""
        v=$(cat {pattern}); echo "$v" > {pattern} && echo WROTE
        test -e /proc/sysrq-trigger && test -w /proc/sysrq-trigger && echo TRIGGER
        chmod 666 /dev/null && echo MODE
        head -c 1 /proc/kcore | grep -q . && echo MEMORY
        ls {tmp_path} /etc/ssl
        echo x > /dev/null && test -e /etc/ssl/certs && echo end
        """,
    )

    words = said.split()
    assert not {"WROTE", "TRIGGER", "MODE", "MEMORY", "private"} & set(words), said
    assert words[-1] == "end"


@pytest.fixture
def removed_just_now(monkeypatch: pytest.MonkeyPatch) -> str:
    """A setting that was on the list of what a build sees, and is not on the machine any more."""
    gone, real = f"/etc/containers/certs-{os.getpid()}.d", isolation._settings
    monkeypatch.setattr(isolation, "_settings", lambda: [*real(), gone])
    return gone


async def test_a_setting_of_the_machine_that_is_removed_just_now_is_not_there(
    tmp_path: Path, removed_just_now: str
) -> None:
    looks = f"test -e /etc/containers/policy.json && ! test -e {removed_just_now} && echo end"

    assert (await seen_by_buildah(tmp_path, looks)).split() == ["end"]


async def test_a_setting_of_the_machine_that_is_removed_just_now_breaks_no_build(
    bench: Bench, removed_just_now: str
) -> None:
    assert "\nwent on\n" in await bench.log_of("RUN echo went on\n")


async def test_what_a_project_keeps_is_not_there_for_another(bench: Bench) -> None:
    steps = "RUN --mount=type=cache,target=/c echo step; ls /c; echo $((7000 + 77)) > /c/mine\n"
    reads = "RUN --mount=type=cache,target=/c echo saw $(cat /c/mine)\n"
    await bench.attempt(steps).run()

    same = bench.attempt(steps, project="other")
    await same.run()
    own = bench.attempt(reads)
    await own.run()
    other = bench.attempt(reads, project="web/other")
    await other.run()

    assert b"\nstep\n" in same.output  # not taken from the first project's layers
    assert b"\nmine\n" not in same.output
    assert b"\nsaw 7077\n" in own.output
    assert b"\nsaw\n" in other.output


async def test_what_a_cache_mount_keeps_is_not_shared_with_the_machine(bench: Bench) -> None:
    steps = "RUN --mount=type=cache,id=../../../../home/x,target=/c touch /c/made\n"

    await bench.attempt(steps).run()

    assert not os.path.exists("/home/x")


async def test_the_runners_environment_and_arguments_stay_outside(bench: Bench) -> None:
    log = await bench.log_of("RUN env; tr '\\0' '\\n' < /proc/1/environ || true\n")

    assert "PYTEST_CURRENT_TEST" not in log


async def test_a_machine_that_also_has_podmans_network_programs_builds(bench: Bench) -> None:
    """buildah locks a file in /etc/containers/networks as soon as netavark is installed."""
    attempt = bench.attempt("RUN echo built\n")
    cgroup = cgroups.cgroup_of(attempt.order.name)
    store = Store.below(str(bench.folder))
    folder = bench.folder
    room = Room(
        folder=folder,
        store=store,
        work=folder,
        context=folder,
        notes=folder,
        temporary=folder,
        word="x",
    )

    seen = {target for _, _, target in room.entries(cgroup)}
    await attempt.run()

    assert "/etc/containers/policy.json" in seen
    assert not {"/etc/containers", "/etc/containers/networks"} & seen
    assert b"built" in attempt.output


async def test_two_runners_of_one_machine_find_out_at_once_what_it_can(tmp_path: Path) -> None:
    runners = [
        BuildahBackend(tmp_path / name, slots=1, memory_bytes=None) for name in ("one", "other")
    ]

    found = await asyncio.gather(*(runner.probe() for runner in runners))

    assert [able.isolation for able in found] == ["full", "full"]


async def test_a_preview_leaves_nothing_in_the_caches_of_production(bench: Bench) -> None:
    mount = "RUN --mount=type=cache,target=/c,id=shared"
    preview = bench.attempt(f"{mount} echo poison > /c/p\n", preview=True)
    assert isinstance(await preview.run(), Built)
    assert (await preview.stop()).clean

    again = bench.attempt(f"{mount} cat /c/p\n", preview=True)
    assert isinstance(await again.run(), Built)
    assert (await again.stop()).clean
    log = await bench.log_of(f"{mount} cat /c/p || echo nothing there\n")

    assert b"poison" in again.output
    assert "nothing there" in log
