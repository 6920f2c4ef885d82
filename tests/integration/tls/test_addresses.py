"""What a machine takes for its own addresses stays the same while it builds."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from pierhead.runner.adapters.network import network_of
from pierhead.server.addresses import own_names


@pytest.fixture(params=["of a build", "another"])
def link(request: pytest.FixtureRequest) -> Iterator[tuple[bool, str]]:
    """An interface with an address, as a step's network has one, or any other."""
    mine = os.getpid()  # another session may run this at the same time
    name = network_of(f"b_{mine}.1").name if request.param == "of a build" else f"phpier{mine}"
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "addr", "add", "203.0.113.77/30", "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield request.param == "of a build", "203.0.113.77"
    finally:
        subprocess.run(["ip", "link", "delete", name], check=True)


def test_the_networks_of_builds_are_none_of_the_machines_addresses(link: tuple[bool, str]) -> None:
    of_a_build, address = link

    assert (address in own_names()) != of_a_build
