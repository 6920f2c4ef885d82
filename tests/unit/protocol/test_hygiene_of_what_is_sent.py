"""What cannot be sent is refused before it is, and a token is never shown by its refusal."""

import pytest

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.client.http import checked_token
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.codec import to_wire
from pierhead.protocol.errors import Invalid, TokenRefused, Unavailable
from pierhead.protocol.problem import problem

FULL = Unavailable(problem("storage-full", "the disk is full"))


@pytest.mark.parametrize("token", ["php_abc", " php_abc", "php_abc\n", "\tphp_abc\r\n"])
def test_blanks_around_a_token_come_from_copying_it(token: str) -> None:
    assert checked_token(token) == "php_abc"


@pytest.mark.parametrize("token", ["php_a\nb", "php_tést", "php a", "php_\0", "php_\udcff"])
def test_what_cannot_be_a_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        checked_token(token)

    assert "php" not in str(refused.value)
    assert refused.value.problem.hint


def test_half_of_a_surrogate_pair_is_refused_as_a_document() -> None:
    with pytest.raises(Invalid) as refused:
        to_wire(CancelRequest(reason="A=\udcff"))

    assert refused.value.problem.detail == "not text in UTF-8: A=?"


async def test_people_hear_at_once_of_a_full_disk() -> None:
    asked = 0

    async def call() -> None:
        nonlocal asked
        asked += 1
        raise FULL

    with pytest.raises(Unavailable):
        await patiently(call, 60, through_full_disk=False)

    assert asked == 1


async def test_a_runner_waits_for_a_full_disk_to_have_room() -> None:
    asked = 0

    async def call() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise FULL

    await patiently(call, 60)

    assert asked == 2
