"""Other registries: which is meant, whose login counts, who may be asked, what is believed."""

import ipaddress
from datetime import UTC, datetime, timedelta

import pytest

from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.domain.rights import logins_of
from pierhead.router.domain.token import Attempt, Owner, Principal, ProjectHolder, Puller, Runner
from pierhead.router.domain.upstream import (
    STALE_MAX,
    Challenge,
    Login,
    challenge,
    endpoint,
    image_at,
    is_public,
    login_for,
    named_image,
    registry_host,
    token_seconds,
    when_silent,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("said", "host"),
    [
        ("ghcr.io", "ghcr.io"),
        ("GHCR.io:443", "ghcr.io"),
        ("registry.example.com:5000", "registry.example.com:5000"),
        ("index.docker.io", "docker.io"),
        ("registry-1.docker.io", "docker.io"),
        ("127.0.0.1:5000", "127.0.0.1:5000"),
        ("localhost", "localhost"),
    ],
)
def test_a_registry_has_one_name(said: str, host: str) -> None:
    assert registry_host(said) == host


@pytest.mark.parametrize(
    "said",
    ["", "https://ghcr.io", "ghcr.io/me", "a b", "-a.io", "ghcr.io:", "x" * 300, "a\nb", "[::1]:5"],
)
def test_what_is_no_host_is_refused(said: str) -> None:
    with pytest.raises(InvalidRequest):
        registry_host(said)


def test_docker_hub_is_asked_where_its_images_are() -> None:
    assert endpoint("docker.io") == "registry-1.docker.io"
    assert endpoint("ghcr.io") == "ghcr.io"


@pytest.mark.parametrize(
    ("host", "said", "name", "reference"),
    [
        ("ghcr.io", "me/app", "me/app", "latest"),
        ("ghcr.io", "ghcr.io/me/app:1.2", "me/app", "1.2"),
        ("ghcr.io", f"me/app@{DIGEST}", "me/app", DIGEST),
        ("docker.io", "busybox", "library/busybox", "latest"),
        ("docker.io", "me/app", "me/app", "latest"),
    ],
)
def test_an_image_is_found_by_what_people_call_it(
    host: str, said: str, name: str, reference: str
) -> None:
    found = named_image(host, said)
    assert (found.host, found.name, found.reference) == (host, name, reference)


@pytest.mark.parametrize(
    ("name", "reference"),
    [("Upper", "1"), ("../x", "1"), ("a" * 256, "1"), ("a", "-x"), ("a", "sha256:12"), ("a", "")],
)
def test_what_is_no_image_is_refused(name: str, reference: str) -> None:
    with pytest.raises(InvalidRequest):
        image_at("ghcr.io", name, reference)


def login(login_id: str, host: str, project: str = "") -> Login:
    return Login(
        id=login_id,
        host=host,
        project=project,
        username="me",
        plain_http=False,
        ca=None,
        added_at=NOW,
    )


def test_the_login_of_a_project_goes_before_the_one_for_all_and_is_nobody_elses() -> None:
    logins = [login("all", "a.io"), login("shop", "a.io", "shop"), login("b", "b.io", "shop")]

    def found(host: str, project: str) -> str | None:
        one = login_for(logins, host, project)
        return one.id if one else None

    assert found("a.io", "shop") == "shop"
    assert found("a.io", "web") == "all"
    assert found("a.io", "") == "all"
    assert found("b.io", "shop") == "b"
    assert found("b.io", "web") is None
    assert found("c.io", "shop") is None


@pytest.mark.parametrize(
    ("who", "whose"),
    [
        (Owner(), ""),
        (Attempt("b_1", 1, "web"), "web"),
        (Attempt("b_1", 1, "web", live=False), None),
        (ProjectHolder("web"), None),
        (Runner("mine"), None),
        (Puller("web"), None),
    ],
)
def test_only_builds_use_logins(who: Principal, whose: str | None) -> None:
    assert logins_of(who) == whose


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_the_worlds_addresses_may_be_asked(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "100.100.100.200", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fd00:ec2::254", "fec0::1", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::1", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "2001:0:7f00:1::1",
    ],
)  # fmt: skip
def test_no_other_address_may(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        (['Basic realm="x"'], Challenge(scheme="basic", realm="x")),
        (
            ['Bearer realm="https://a/token",service="s, t",scope="repository:x:pull"'],
            Challenge(scheme="bearer", realm="https://a/token", service="s, t"),
        ),
        (['bearer REALM="https://a"'], Challenge(scheme="bearer", realm="https://a")),
        (
            ['Basic realm="x", Bearer realm="https://a", service=s'],
            Challenge(scheme="bearer", realm="https://a", service="s"),
        ),
        (["Negotiate", 'Basic realm="x"'], Challenge(scheme="basic", realm="x")),
        (['Bearer realm="a\\"b"'], Challenge(scheme="bearer", realm='a"b')),
        (["Bearer"], None),
        ([], None),
        (["," * 9000, "\x00"], None),
    ],
)
def test_a_challenge_is_read(headers: list[str], wanted: Challenge | None) -> None:
    assert challenge(headers) == wanted


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (300, 240),
        (None, 48),
        ("300", 48),
        (-1, 48),
        (0, 48),
        (True, 48),
        (10**9, 2880),
        (10**400, 2880),
        (float("inf"), 2880),
        (float("nan"), 48),
        (1.5, 1.2),
    ],
)
def test_a_token_is_used_for_less_than_it_is_good(said: object, seconds: float) -> None:
    assert token_seconds(said) == pytest.approx(seconds)


def test_a_tag_is_told_for_a_week_when_its_registry_is_silent() -> None:
    assert when_silent(None, NOW) == "gone"
    assert when_silent(NOW, NOW + STALE_MAX) == "stale"
    assert when_silent(NOW, NOW + STALE_MAX + timedelta(seconds=1)) == "gone"
