"""What is sealed for one attempt of one session opens there, and nowhere else."""

import msgspec
import pytest

from pierhead.protocol.errors import IntegrityError
from pierhead.protocol.lease import Sealed
from pierhead.protocol.sealing import SessionKey, seal, usable

VALUES = {"npm": b"tok\0en\n", "empty": b"", "big": b"\xff" * 500_000}


def sealed(key: SessionKey, build_id: str = "b_1", fence: int = 1) -> Sealed:
    return seal(VALUES, recipient=key.public, build_id=build_id, fence=fence)


def test_what_was_sealed_opens_for_its_attempt() -> None:
    key = SessionKey()

    assert key.open(sealed(key), build_id="b_1", fence=1) == VALUES


def test_two_boxes_of_the_same_values_have_nothing_in_common() -> None:
    key = SessionKey()
    one, other = sealed(key), sealed(key)

    assert one.public_key != other.public_key
    assert one.box[:64] != other.box[:64]


@pytest.mark.parametrize(("build_id", "fence"), [("b_2", 1), ("b_1", 2), ("b_1\n1", 1)])
def test_a_box_does_not_open_for_another_attempt(build_id: str, fence: int) -> None:
    key = SessionKey()

    with pytest.raises(IntegrityError):
        key.open(sealed(key), build_id=build_id, fence=fence)


def test_a_box_does_not_open_for_another_session() -> None:
    with pytest.raises(IntegrityError):
        SessionKey().open(sealed(SessionKey()), build_id="b_1", fence=1)


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_box_that_was_changed_does_not_open(at: int) -> None:
    key = SessionKey()
    box = bytearray(sealed(key).box)
    box[at] ^= 1

    with pytest.raises(IntegrityError):
        key.open(Sealed(public_key=sealed(key).public_key, box=bytes(box)), build_id="b_1", fence=1)


@pytest.mark.parametrize(
    "changed",
    [{"public_key": bytes(32)}, {"box": b""}, {"box": b"short"}],
    ids=["a key that agrees with everybody", "no box", "less than a tag"],
)
def test_nonsense_does_not_open(changed: dict[str, bytes]) -> None:
    key = SessionKey()

    with pytest.raises(IntegrityError):
        key.open(msgspec.structs.replace(sealed(key), **changed), build_id="b_1", fence=1)


def test_nothing_is_sealed_to_a_key_that_agrees_with_everybody() -> None:
    assert usable(SessionKey().public)
    assert not usable(bytes(32))
    with pytest.raises(ValueError, match="shared key"):
        seal(VALUES, recipient=bytes(32), build_id="b_1", fence=1)
