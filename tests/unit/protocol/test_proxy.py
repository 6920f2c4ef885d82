import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.client.proxy import proxy_for
from pierhead.protocol.errors import Invalid
from pierhead.protocol.loopback import is_loopback

PROXY = "http://proxy.example:3128"
URL = "https://build.example.com:7443"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"HTTPS_PROXY": PROXY}, PROXY),
        ({"https_proxy": PROXY}, PROXY),
        ({"ALL_PROXY": PROXY}, PROXY),
        ({"HTTP_PROXY": PROXY}, None),
        ({"HTTPS_PROXY": "proxy.example:3128"}, PROXY),
        ({"HTTPS_PROXY": PROXY, "https_proxy": ""}, PROXY),
    ],
)
def test_the_proxy_of_the_scheme_is_taken(
    environment: dict[str, str], expected: str | None
) -> None:
    assert proxy_for(URL, environment) == expected


@pytest.mark.parametrize(
    ("excluded", "url"),
    [
        ("*", URL),
        ("build.example.com", URL),
        ("BUILD.example.com", URL),
        ("example.com", URL),
        (".example.com", URL),
        ("other.org, example.com", URL),
        ("build.example.com:7443", URL),
        ("10.0.0.7", "https://10.0.0.7:7443"),
        ("10.0.0.0/8", "https://10.0.0.7:7443"),
        ("fd00::/8", "https://[fd00::2]:7443"),
        ("[fd00::2]:7443", "https://[fd00::2]:7443"),
    ],
)
def test_who_is_excluded_is_asked_directly(excluded: str, url: str) -> None:
    assert proxy_for(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": excluded}) is None


@pytest.mark.parametrize(
    ("excluded", "url"),
    [
        ("", URL),
        ("ample.com", URL),
        ("build.example.com:443", URL),
        ("10.0.0.0/8", "https://11.0.0.7"),
        ("10.0.0.1", "https://10.0.0.10"),
        ("0.0.7", "https://10.0.0.7"),
    ],
)
def test_who_only_looks_alike_is_not_excluded(excluded: str, url: str) -> None:
    assert proxy_for(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": excluded}) == PROXY


@pytest.mark.parametrize("url", ["http://127.0.0.1:7443", "https://localhost", "http://[::1]:1"])
def test_no_proxy_stands_between_two_processes_of_one_machine(url: str) -> None:
    assert proxy_for(url, {"HTTPS_PROXY": PROXY, "HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}) is None


def test_a_proxy_that_not_every_process_can_use_is_refused_without_its_password() -> None:
    with pytest.raises(Invalid) as refused:
        proxy_for(URL, {"HTTPS_PROXY": "socks5://me:hunter2@proxy.example:1080"})
    assert "hunter2" not in str(refused.value)
    assert refused.value.problem.hint


@pytest.mark.parametrize(
    "unreadable",
    ["http://[::1", "http://p:99999", "http://p:b", "http://p:0", "http://me:x@[", "/"],
)
def test_a_proxy_that_cannot_be_read_is_refused(unreadable: str) -> None:
    with pytest.raises(Invalid, match="not an HTTP proxy"):
        proxy_for(URL, {"HTTPS_PROXY": unreadable})


@given(st.text(max_size=60))
def test_no_proxy_that_is_named_breaks_the_question(text: str) -> None:
    with contextlib.suppress(Invalid):
        proxy = proxy_for(URL, {"HTTPS_PROXY": text})
        assert proxy is None or httpx.Proxy(proxy)


@given(st.text(max_size=60))
def test_no_list_of_exceptions_breaks_the_question(text: str) -> None:
    assert proxy_for(URL, {"HTTPS_PROXY": PROXY, "NO_PROXY": text}) in {None, PROXY}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example.com", "10.0.0.1", "127.0.0.1.nip.io", ""])
def test_anything_else_may_be_another_machine(host: str) -> None:
    assert not is_loopback(host)
