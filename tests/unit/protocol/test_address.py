"""Which addresses of a control plane are taken, and which can be read at all."""

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pierhead.protocol.client.address import check_url, host_of
from pierhead.protocol.errors import Invalid


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://build.example.com", "build.example.com"),
        ("https://Build_1.example.com.:7443/", "build_1.example.com."),
        ("http://127.0.0.1:7443", "127.0.0.1"),
        ("https://[fe80::1%eth0]:7443", "fe80::1%eth0"),
        ("https://xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_the_host_is_what_is_connected_to(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    "url",
    [
        "https://[::1",
        "https://h:99999",
        "https://h:x",
        "https://h:0",
        "https://1.2.3.400",
        "https://b\u00fccher.example",
        "https://a b",
        "https://-h",
        "https://h\x1f",
        "https://",
        "build.example.com",
        "ftp://build.example.com",
    ],
)
def test_what_cannot_be_read_is_told_so(url: str) -> None:
    with pytest.raises(Invalid, match="not a URL of a control plane"):
        check_url(url)


@given(st.text(max_size=40))
def test_what_is_taken_can_be_asked(text: str) -> None:
    for url in (text, f"https://{text}"):
        with contextlib.suppress(Invalid):
            assert httpx.URL(check_url(url)).host
