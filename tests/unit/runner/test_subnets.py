"""Four addresses for each build, wherever the machine's own networks are."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.runner.adapters.network import NetworkError, choose_subnet, network_of, rules

POOLS = [IPv4Network(pool) for pool in ("100.126.0.0/16", "10.213.0.0/16", "172.29.0.0/16")]
PRIVATE = st.builds(
    lambda pool, offset, length: IPv4Network(
        (int(pool.network_address) + offset, length), strict=False
    ),
    st.sampled_from(POOLS),
    st.integers(0, 2**16 - 1),
    st.integers(15, 32),
)


@given(st.text(), st.lists(PRIVATE, max_size=6))
def test_a_subnet_overlaps_nothing_that_the_machine_has_a_route_to(
    name: str, taken: list[IPv4Network]
) -> None:
    try:
        subnet = choose_subnet(name, taken)
    except NetworkError:
        # Then every pool has an owner that is larger than what could be gone around.
        assert all(any(network.overlaps(pool) for network in taken) for pool in POOLS)
        return

    assert subnet.prefixlen == 30
    assert not any(subnet.overlaps(network) for network in taken)


def test_a_machine_that_routes_every_pool_is_told_so() -> None:
    with pytest.raises(NetworkError, match="no private subnet"):
        choose_subnet("b_x.1", POOLS)


def test_two_builds_at_once_have_two_subnets() -> None:
    first = choose_subnet("b_x.1", [])

    assert choose_subnet("b_x.1", [first]) != first


def test_a_build_is_kept_from_the_host_from_metadata_and_from_other_builds() -> None:
    network = network_of("b_x.1")
    found = rules(network, IPv4Network("100.126.0.0/30"))

    assert len(network.name) <= 15
    assert all(f"pierhead:{network.name}" in rule for rule in found)
    # Each is inserted at the top, so what comes later in the list is asked earlier.
    forward = [(rule[2:6], rule[-1]) for rule in reversed(found) if rule[1] == "FORWARD"]
    assert forward[:3] == [
        (("-i", network.name, "-d", "169.254.0.0/16"), "DROP"),
        (("-i", network.name, "-o", "ph+"), "DROP"),
        (("-i", network.name, "-m", "comment"), "ACCEPT"),
    ]
    assert [rule[-1] for rule in found if rule[1] == "INPUT"] == ["DROP"]
