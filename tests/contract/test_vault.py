"""What every vault keeps. There is one, which the simulator uses as well."""

from collections.abc import Callable

import pytest

from pierhead.protocol.errors import IntegrityError
from pierhead.protocol.sealing import SessionKey
from pierhead.router.adapters.vault import KeyVault
from pierhead.router.domain.errors import SecretsLost
from pierhead.router.ports.vault import Vault

VALUES = {"npm": b"a value\0\xff", "empty": b"", "same": b"a value\0\xff"}


@pytest.fixture(params=[KeyVault])
def vault_of(request: pytest.FixtureRequest) -> Callable[[bytes], Vault]:
    """Return the vault of an installation with a key."""
    kind: Callable[[bytes], Vault] = request.param
    return kind


@pytest.fixture
def vault(vault_of: Callable[[bytes], Vault]) -> Vault:
    return vault_of(b"k" * 32)


def test_what_was_locked_opens_also_after_a_restart(
    vault: Vault, vault_of: Callable[[bytes], Vault]
) -> None:
    locked = vault.lock("b_1", VALUES)

    assert vault_of(b"k" * 32).unlock("b_1", locked) == VALUES
    assert vault.lock("b_1", {}) == {}
    assert vault.unlock("b_1", {}) == {}


def test_nothing_can_be_read_or_compared_while_it_is_locked(vault: Vault) -> None:
    first, second = vault.lock("b_1", VALUES), vault.lock("b_1", VALUES)

    assert first.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert first[name] != second[name]  # the same value twice does not look the same
        assert not value or value not in first[name]
    assert first["npm"] != first["same"]


@pytest.mark.parametrize(
    "change",
    [
        lambda box: b"",
        lambda box: box[:5],
        lambda box: box[:-1],
        lambda box: box + b"\0",
        lambda box: box[:-1] + bytes([box[-1] ^ 1]),
        lambda box: bytes([box[0] ^ 1]) + box[1:],
    ],
)
def test_what_was_changed_does_not_open(vault: Vault, change: Callable[[bytes], bytes]) -> None:
    locked = vault.lock("b_1", VALUES)

    with pytest.raises(SecretsLost):
        vault.unlock("b_1", {**locked, "npm": change(locked["npm"])})


def test_what_was_moved_does_not_open(vault: Vault, vault_of: Callable[[bytes], Vault]) -> None:
    locked = vault.lock("b_1", VALUES)

    for other, build_id, moved in (
        (vault, "b_2", locked),
        (vault, "b_1", {"npm": locked["same"]}),
        (vault_of(b"l" * 32), "b_1", locked),
    ):
        with pytest.raises(SecretsLost):
            other.unlock(build_id, moved)


def test_the_mac_tells_values_apart_and_is_each_builds_and_keys_own(
    vault: Vault, vault_of: Callable[[bytes], Vault]
) -> None:
    backwards = dict(reversed(VALUES.items()))

    assert vault.mac("b_1", VALUES) == vault.mac("b_1", backwards)
    different = [
        vault.mac("b_1", VALUES),
        vault.mac("b_2", VALUES),
        vault.mac("b_1", {**VALUES, "npm": b"another"}),
        vault.mac("b_1", {**VALUES, "more": b""}),
        vault.mac("b_1", {"npm": VALUES["npm"]}),
        vault.mac("b_1", {}),
        vault_of(b"l" * 32).mac("b_1", VALUES),
    ]
    assert len(set(different)) == len(different)


def test_what_is_sealed_opens_for_one_session_and_attempt_alone(vault: Vault) -> None:
    key, other = SessionKey(), SessionKey()

    sealed = vault.seal(VALUES, recipient=key.public, build_id="b_1", fence=2)

    assert key.open(sealed, build_id="b_1", fence=2) == VALUES
    for who, build_id, fence in ((other, "b_1", 2), (key, "b_2", 2), (key, "b_1", 3)):
        with pytest.raises(IntegrityError):
            who.open(sealed, build_id=build_id, fence=fence)


def test_only_what_agrees_on_a_key_with_us_alone_can_be_sealed_to(vault: Vault) -> None:
    assert vault.usable(SessionKey().public)
    for key in (b"", b"short", bytes(32), bytes([1, *bytes(31)]), bytes(33)):
        assert not vault.usable(key)
