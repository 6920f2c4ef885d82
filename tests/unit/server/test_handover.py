"""Which process a request belongs to, by its first bytes, however few they are."""

import pytest

from pierhead.server.handover import of_registry


@pytest.mark.parametrize("line", [b"GET /v2/ HTTP/1.1", b"HEAD /v2 HTTP/1.1", b"PATCH /v2/a/b?c=d"])
def test_what_is_below_v2_is_the_registrys(line: bytes) -> None:
    assert of_registry(line) is True


@pytest.mark.parametrize(
    "line",
    [
        b"GET /api/builds HTTP/1.1",
        b"GET /v2x HTTP/1.1",
        b"GET /v3/ HTTP/1.1",
        b"GET http://x/v2/ HTTP/1.1",
        b"\x16\x03\x01\x02\x00",
        b"get /v2/ HTTP/1.1",
        b"TOOLONGAMETHOD /v2/",
        b"\r\nGET /v2/",
    ],
)
def test_everything_else_is_not(line: bytes) -> None:
    assert of_registry(line) is False


def test_it_is_told_as_soon_as_it_can_be_and_never_wrongly() -> None:
    for line in (b"GET /v2/shop/tags HTTP/1.1", b"POST /api/builds HTTP/1.1", b"GET /v2x HTTP/1.1"):
        told = [of_registry(line[:length]) for length in range(1, len(line) + 1)]
        decided = [answer for answer in told if answer is not None]
        assert decided == [decided[-1]] * len(decided), told
        assert told[0] is None
