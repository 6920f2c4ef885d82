"""What is said to `pierhead up` counts from then on, and what is empty takes it back."""

import pytest

from pierhead.router.cli.chosen import Chosen, Said, choose
from pierhead.router.domain.errors import InvalidRequest

NAMED = Chosen(public_url="https://nat.example.com", port=7000)
PROXIED = Chosen(
    host="127.0.0.1", public_url="https://build.example.com", behind_proxy=("127.0.0.1",)
)
CERTIFIED = Chosen(domain="build.example.com", domain_port=0, acme="https://acme.example/dir")


def test_what_is_not_said_stays() -> None:
    assert choose(NAMED, Said()) == NAMED
    assert choose(NAMED, Said(port=7001)) == Chosen(public_url=NAMED.public_url, port=7001)


def test_an_empty_public_url_takes_it_back() -> None:
    assert choose(NAMED, Said(public_url="")) == Chosen(port=7000)


def test_a_public_name_takes_the_place_of_an_address_and_goes_again() -> None:
    named = choose(NAMED, Said(domain="build.example.com"))
    assert named.public_url is None
    assert named.told_url == "https://build.example.com"
    assert choose(named, Said(domain="")) == Chosen(port=7000)


def test_a_proxy_listens_to_this_machine_and_takes_the_certificate_of_a_name() -> None:
    proxied = choose(
        CERTIFIED, Said(behind_proxy=("127.0.0.1",), public_url="https://build.example.com")
    )
    assert proxied.domain is None
    assert proxied.host == "127.0.0.1"
    assert proxied.told_url == "https://build.example.com"


def test_without_its_proxy_it_answers_others_by_itself_again() -> None:
    assert choose(PROXIED, Said(behind_proxy=())) == Chosen()
    kept = choose(PROXIED, Said(behind_proxy=(), public_url="https://nat.example.com"))
    assert kept == Chosen(public_url="https://nat.example.com")


def test_a_proxy_that_is_not_there_is_taken_back_without_effect() -> None:
    assert choose(NAMED, Said(behind_proxy=())) == NAMED


def test_a_certificate_of_its_own_needs_no_proxy_any_more() -> None:
    named = choose(PROXIED, Said(domain="build.example.com"))
    assert named.behind_proxy == ()
    assert named.host == "0.0.0.0"


def test_an_acme_server_alone_is_another_one_for_the_name_that_there_is() -> None:
    assert choose(CERTIFIED, Said(acme="https://other.example")).acme == "https://other.example"


@pytest.mark.parametrize(
    ("noted", "said"),
    [
        (CERTIFIED, Said(public_url="https://nat.example.com")),
        (Chosen(), Said(domain="build.example.com", public_url="https://nat.example.com")),
    ],
)
def test_an_address_beside_a_public_name_is_refused_with_the_line_that_takes_the_name_back(
    noted: Chosen, said: Said
) -> None:
    with pytest.raises(InvalidRequest, match=r"reached by build\.example\.com") as refused:
        choose(noted, said)
    assert refused.value.hint == "pierhead up --domain '' --public-url https://nat.example.com"
