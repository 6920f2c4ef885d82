import pytest

from pierhead.router.domain.errors import InvalidRequest
from pierhead.router.domain.reach import check_public_url, proxy_networks, reach, url_of_domain


def test_on_loopback_it_speaks_plain_http_to_its_own_machine_only() -> None:
    found = reach(host="127.0.0.1", port=7443, usual_address="203.0.113.7")
    assert found.url == found.local == "http://127.0.0.1:7443"
    assert found.hosts == ("127.0.0.1",)
    assert not found.own_tls


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_on_all_addresses_it_is_reached_by_the_usual_one_over_tls(host: str) -> None:
    found = reach(host=host, port=7443, usual_address="203.0.113.7")
    assert found.url == "https://203.0.113.7:7443"
    assert found.local == "http://127.0.0.1:7443"
    assert found.hosts == (host,)
    assert found.own_tls


def test_on_one_address_it_listens_on_loopback_as_well() -> None:
    found = reach(host="203.0.113.9", port=7443, usual_address="203.0.113.7")
    assert found.url == "https://203.0.113.9:7443"
    assert found.hosts == ("203.0.113.9", "127.0.0.1")


def test_an_ipv6_address_is_written_as_in_a_url() -> None:
    found = reach(host="fd00::2", port=7443, usual_address=None)
    assert found.url == "https://[fd00::2]:7443"
    assert found.name == "fd00::2"
    assert found.address == found.registry == "[fd00::2]:7443"
    assert not found.names_images


def test_a_machine_without_any_other_address_is_reached_from_itself() -> None:
    found = reach(host="0.0.0.0", port=7443, usual_address=None)
    assert found.url == "http://127.0.0.1:7443"


def test_a_public_name_wins_and_keeps_its_own_certificates() -> None:
    found = reach(
        host="0.0.0.0", port=7443, usual_address="10.0.0.2", public_url="https://nat.example.com/"
    )
    assert found.url == "https://nat.example.com"
    assert found.registry == "nat.example.com"
    assert found.names_images
    assert found.address == "nat.example.com:443"
    assert found.name == "nat.example.com"
    assert found.own_tls


def test_behind_a_proxy_it_answers_no_handshakes() -> None:
    found = reach(
        host="0.0.0.0",
        port=7443,
        usual_address="10.0.0.2",
        public_url="https://build.example.com",
        behind_proxy=True,
    )
    assert not found.own_tls


def test_behind_a_proxy_it_has_to_be_told_its_name() -> None:
    with pytest.raises(InvalidRequest, match="cannot know its address"):
        reach(host="127.0.0.1", port=7443, usual_address=None, behind_proxy=True)


@pytest.mark.parametrize(
    "url", ["build.example.com", "https://x/pierhead", "ftp://x", "https://", "https://a b"]
)
def test_what_is_no_address_of_a_control_plane_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="not an address"):
        reach(host="0.0.0.0", port=7443, usual_address=None, public_url=url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://[fd00::2]:7443", r"take no image name that begins with \[fd00::2\]"),
        ("https://[::1]", "take no image name"),
        ("https://build", "look for build/... at docker.io"),
        ("https://build.example.com:0", "no host has the address"),
        ("https://build.example.com:65536", "no host has the address"),
        ("https://build..example.com", "no host has the address"),
        ("https://-build.example.com", "no host has the address"),
    ],
)
def test_an_address_that_no_image_can_be_named_by_is_refused_with_what_can(
    url: str, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        check_public_url(url)
    check_public_url(refused.value.hint.rpartition(" ")[2])


@pytest.mark.parametrize(
    "url", ["https://build:443", "http://localhost", "http://127.0.0.1:9", "https://b.example.com/"]
)
def test_an_address_that_images_are_named_by_passes(url: str) -> None:
    check_public_url(url)


@pytest.mark.parametrize(
    ("domain", "port", "url"),
    [
        ("build.example.com", 443, "https://build.example.com"),
        ("build.example.com", 7443, "https://build.example.com:7443"),
        ("build", 443, "https://build:443"),
    ],
)
def test_the_address_of_a_public_name_has_a_port_where_clients_need_it(
    domain: str, port: int, url: str
) -> None:
    assert url_of_domain(domain, port) == url
    check_public_url(url)


def test_a_proxys_network_is_an_address_or_a_range() -> None:
    assert list(map(str, proxy_networks(["127.0.0.1", "172.17.0.1/16", "fd00::1"]))) == [
        "127.0.0.1/32",
        "172.17.0.0/16",
        "fd00::1/128",
    ]


@pytest.mark.parametrize("said", ["", "traefik", "10.0.0.0/33"])
def test_what_is_no_network_is_refused(said: str) -> None:
    with pytest.raises(InvalidRequest, match="not a network"):
        proxy_networks([said])
