"""Who a visitor is, as one process tells another."""

import pytest

from pierhead.server.peer import LINE_BYTES_MAX, Peer, as_line, from_line

LONGEST = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%enp0s31f6-vlan-4094"


@pytest.mark.parametrize("peer", [None, Peer("192.0.2.7", 1), Peer(LONGEST, 65535)])
def test_it_is_one_line_and_the_same_again(peer: Peer | None) -> None:
    line = as_line(peer)
    assert len(line) <= LINE_BYTES_MAX
    assert line.index(b"\n") == len(line) - 1
    assert from_line(line[:-1]) == peer


@pytest.mark.parametrize(
    ("address", "compared"),
    [("::ffff:192.0.2.7", "192.0.2.7"), ("fe80::1%eth0", "fe80::1"), ("192.0.2.7", "192.0.2.7")],
)
def test_it_is_compared_as_what_it_is(address: str, compared: str) -> None:
    assert str(Peer(address, 1).unmapped) == compared
