"""A step must not see, kill or reach this machine, its network, or another build."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pierhead.protocol.plan import Plan
from pierhead.runner.adapters import cgroup as cgroups
from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.cgroup import PIDS_MAX
from pierhead.runner.adapters.isolation import Room
from tests.integration.backend.conftest import Bench

# A stage whose content is a link to the root: what CVE-2024-1753 begins with.
IPV6 = Path("/proc/net/if_inet6")
TRAP = "FROM base AS trap\nRUN ln -s / /way-out\nFROM base\n"
MOUNT = "RUN --mount=type=bind,from=trap,source=/way-out,target=/mnt,rw "


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


async def test_a_mount_that_leads_out_of_its_stage_shows_nothing_of_the_machine(
    bench: Bench, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    tries = f"cat /mnt{secret} /mnt/etc/shadow; touch /mnt/usr/x; ls /mnt/home /mnt/boot"

    log = await bench.log_of(f"{TRAP}{MOUNT}{tries}; echo end\n")

    assert "\nSECRET" not in log
    assert "root:" not in log
    assert log.count("No such file or directory") == 4
    assert "Read-only file system" in log
    assert "\nend\n" in log


async def test_a_mount_that_leads_out_of_its_stage_cannot_lift_the_limits(bench: Bench) -> None:
    tries = (
        "find /mnt/sys/fs/cgroup -name pids.max -exec cat {} +; "
        "for f in $(find /mnt/sys/fs/cgroup -name pids.max); do echo max > $f; done; echo end"
    )
    attempt = bench.attempt(f"{TRAP}{MOUNT}{tries}; while ! test -e /never; do sleep 1; done\n")
    building = asyncio.create_task(attempt.run())

    await attempt.until(b"\nend\n")

    limits = [Path(folder, "pids.max") for folder in attempt.groups[0].cgroups]
    assert [file.read_text().strip() for file in limits if file.exists()] == [str(PIDS_MAX)]
    building.cancel()
    await asyncio.wait({building})
    assert (await attempt.stop()).clean


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
    room = Room(folder=bench.folder, writable=(), readable=(), temporary=bench.folder)

    seen = {target for _, _, target in room.entries(cgroup)}
    await attempt.run()

    assert "/etc/containers/policy.json" in seen
    assert not {"/etc/containers", "/etc/containers/networks"} & seen
    assert b"built" in attempt.output
