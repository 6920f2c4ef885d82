"""What passes are good for, and for how long."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.router.adapters.vault import KeyVault
from pierhead.router.domain.errors import TokenExpired, Unauthenticated
from pierhead.router.domain.passes import (
    LIFETIME,
    SCOPES_MAX,
    claims,
    covers,
    needed,
    read,
    scopes_of,
)
from pierhead.router.services.passes import Passes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACTIONS = st.frozensets(st.sampled_from(["pull", "push", "delete"]), min_size=1)
NAMES = st.from_regex(r"repository:[a-z0-9][a-z0-9._/-]{0,199}", fullmatch=True)


class Stopped:
    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at


@given(st.dictionaries(NAMES, ACTIONS, max_size=SCOPES_MAX))
def test_what_a_pass_says_is_read_as_it_was_meant(scopes: dict[str, frozenset[str]]) -> None:
    assert read(claims(scopes, NOW), NOW) == scopes


@given(st.lists(st.text()))
def test_whatever_is_asked_for_is_read_within_bounds(texts: list[str]) -> None:
    scopes = scopes_of(texts)
    assert len(scopes) <= SCOPES_MAX
    assert read(claims(scopes, NOW), NOW) == scopes


def test_scopes_that_nobody_knows_are_not_granted() -> None:
    asked = ["x", "repository:a", "repository:A:pull", "repository:a:own", "registry:other:*", ""]
    assert set().union(*scopes_of(asked).values()) == set()
    many = scopes_of([f"repository:r{number}:pull" for number in range(100)])
    assert len(many) == SCOPES_MAX


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "a/b/manifests/v1", "repository:a/b:pull"),
        ("HEAD", "a/manifests/v1", "repository:a:pull"),
        ("HEAD", "a/blobs/sha256:0", "repository:a:pull,push"),
        ("GET", "a/tags/list", "repository:a:pull"),
        ("GET", "a/referrers/sha256:0", "repository:a:pull"),
        ("PUT", "a/manifests/v1", "repository:a:pull,push"),
        ("POST", "a/blobs/uploads/", "repository:a:pull,push"),
        ("GET", "a/blobs/uploads/u_1", "repository:a:pull,push"),
        ("DELETE", "a/blobs/uploads/u_1", "repository:a:pull,push"),
        ("DELETE", "a/manifests/v1", "repository:a:delete"),
        ("DELETE", "a/blobs/sha256:0", "repository:a:delete"),
        ("GET", "_catalog", "registry:catalog:*"),
        ("GET", "", None),
    ],
)
def test_what_a_request_needs(method: str, path: str, scope: str | None) -> None:
    wanted = needed(method, path)

    assert (wanted.scope if wanted else None) == scope
    if wanted is not None:
        assert covers(scopes_of([wanted.scope]), wanted)
        assert not covers(scopes_of(["repository:other:*"]), wanted)


def test_a_pass_holds_the_credential_for_its_time_and_only_for_who_made_it() -> None:
    clock = Stopped(NOW)
    mine, other = (Passes(vault=KeyVault(key * 32), clock=clock) for key in (b"a", b"b"))
    given_out = mine.give("php_secret", ["repository:a:pull"])

    assert mine.open(given_out) == ("php_secret", {"repository:a": frozenset({"pull"})})
    assert mine.give("php_secret", ["repository:a:pull"]) != given_out
    with pytest.raises(Unauthenticated):
        other.open(given_out)
    clock.at = NOW + LIFETIME - timedelta(seconds=1)
    mine.open(given_out)
    clock.at = NOW + LIFETIME
    with pytest.raises(TokenExpired):
        mine.open(given_out)
