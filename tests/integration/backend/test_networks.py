"""Several runners of one machine: no two builds in one subnet, and nobody clears another's away."""

import asyncio
import os
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pierhead.runner.adapters import network as networks
from pierhead.runner.adapters.buildah import BuildahBackend
from tests.integration.backend.conftest import Bench

# As slow as can be between the look and the taking: whoever is not alone takes the same subnet.
OPEN = """
import asyncio, sys
from pierhead.runner.adapters import network as networks
real = networks._routed
async def slowly():
    found = await real()
    await asyncio.sleep(0.5)
    return found
networks._routed = slowly
print(asyncio.run(networks.open_network(networks.Network(sys.argv[1]))))
"""


def with_the_same_wish(count: int) -> list[str]:
    """Return names for which the same subnet is looked at first."""
    first: dict[int, list[str]] = {}
    number = 0
    while True:
        name = f"pht{os.getpid():x}-{number:x}"  # others may run the same tests
        same = first.setdefault(zlib.crc32(name.encode()) % 2**14, [])
        same.append(name)
        if len(same) == count:
            return same
        number += 1


@pytest.fixture
async def names() -> AsyncIterator[list[str]]:
    found = with_the_same_wish(3)
    yield found
    for name in found:
        await networks.close_network(networks.Network(name))


async def test_processes_that_open_networks_at_once_get_different_subnets(
    names: list[str],
) -> None:
    async def open_one(name: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN, name, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode().strip()

    gateways = await asyncio.gather(*map(open_one, names))

    assert len(set(gateways)) == len(names)


async def test_a_runner_that_begins_leaves_the_builds_of_another_alone(
    bench: Bench, tmp_path: Path
) -> None:
    attempt = bench.attempt("RUN echo up; while ! test -e /never; do sleep 0.1; done\n")
    building = asyncio.create_task(attempt.run())
    await attempt.until(b"\nup\n")
    network = networks.network_of(attempt.order.name)
    before = await networks.leftovers(network)

    other = BuildahBackend(tmp_path / "other", slots=1, memory_bytes=None)
    await other.sweep()
    await other.examine()

    assert len(before) == 2 + len(networks.rules(network, networks._POOLS[0]))
    assert await networks.leftovers(network) == before
    assert not building.done()
    building.cancel()
    await asyncio.wait({building})
    assert (await attempt.stop()).clean
