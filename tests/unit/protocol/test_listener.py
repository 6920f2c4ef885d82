"""Who listens where, by the kernel's table."""

import sys
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from pierhead.protocol.client import listener
from pierhead.protocol.client.listener import listeners, require_listener
from pierhead.protocol.errors import Refused

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
PORT = 7443


def digits(address: str) -> str:
    """Write an address as the kernel does."""
    packed = ip_address(address).packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def row(address: str, uid: int, *, port: int = PORT, state: str = "0A") -> str:
    here, rest = f"{digits(address)}:{port:04X}", "00000000:00000000 00:00000000 00000000"
    return f"   0: {here} 00000000:0000 {state} {rest} {uid:5}        0 1616 1 0000 100 0 0 10 0\n"


@pytest.mark.parametrize(
    ("url", "address", "is_meant"),
    [
        ("http://127.0.0.1:7443", "127.0.0.1", True),
        ("http://127.0.0.1:7443", "0.0.0.0", True),
        ("http://127.0.0.1:7443", "::", True),
        ("http://127.0.0.1:7443", "::ffff:127.0.0.1", True),
        ("http://127.0.0.1:7443", "127.0.0.2", False),
        ("http://127.0.0.1:7443", "10.77.0.11", False),
        ("http://127.0.0.1:7444", "127.0.0.1", False),
        ("http://[::1]:7443", "::1", True),
        ("http://[::1]:7443", "127.0.0.1", False),
        ("http://localhost:7443", "127.0.0.1", True),
        ("http://localhost:7443", "::1", True),
    ],
)
def test_who_listens_is_found_by_address_and_port(url: str, address: str, is_meant: bool) -> None:
    table = HEAD + row("127.0.0.1", 1, port=80) + row(address, 1000) + row(address, 7, state="01")
    assert list(listeners(table, url)) == ([1000] if is_meant else [])


def test_the_kernel_writes_loopback_so() -> None:
    assert digits("127.0.0.1") == {"little": "0100007F", "big": "7F000001"}[sys.byteorder]


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let processes of some users listen."""

    def listen(*uids: int) -> None:
        table = HEAD + "".join(row("127.0.0.1", uid) for uid in uids)
        monkeypatch.setattr(listener, "_text", lambda file: table if file.name == "tcp" else "")

    return listen


@pytest.mark.parametrize(
    ("uids", "refused"),
    [((), []), ((0,), []), ((33,), []), ((0, 33), []), ((4711,), [4711]), ((0, 4711), [4711])],
)
def test_whose_control_plane_it_is_may_listen_and_root_and_no_stranger(
    listening: Callable[..., None], uids: tuple[int, ...], refused: list[int]
) -> None:
    listening(*uids)
    said = []
    try:
        require_listener("http://127.0.0.1:7443", frozenset({0, 33}))
    except Refused as error:
        said.append(str(error))
    assert said == [
        f"at http://127.0.0.1:7443 a process of user {uid} listens, "
        "who is not the control plane's user"
        for uid in refused
    ]
