"""What is said when nobody answers tells the next step."""

import ssl

import httpx
import pytest

from pierhead.protocol.client.failure import unreachable


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://127.0.0.1:7443", "on this machine"),
        ("http://[::1]:7443", "on this machine"),
        ("https://build.example.com", "on its machine, if it is not running there"),
    ],
)
def test_who_reaches_nobody_is_told_what_starts_a_control_plane(url: str, where: str) -> None:
    error = unreachable(url, httpx.ConnectError("All connection attempts failed"))

    assert error.problem.detail == f"no answer from {url}: All connection attempts failed"
    assert error.problem.hint == f"pierhead up starts the control plane {where}"


def test_who_is_cut_off_asks_again() -> None:
    error = unreachable("http://127.0.0.1:7443", httpx.ReadTimeout(""))

    assert error.problem.detail == "no answer from http://127.0.0.1:7443: it takes too long"
    assert error.problem.hint == "ask again later"


def test_who_goes_by_a_proxy_is_told_which_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.example.com:3128")

    error = unreachable("https://build.example.com:7443", httpx.ConnectError("Name not known"))

    assert error.problem.detail == (
        "no answer from https://build.example.com:7443 by the proxy proxy.example.com:3128:"
        " Name not known"
    )
    assert error.problem.hint == (
        "is HTTPS_PROXY right? NO_PROXY=build.example.com asks without one"
    )


@pytest.mark.parametrize("said", ["certificate is not yet valid", "certificate has expired"])
def test_who_is_out_of_a_certificates_time_compares_clocks(said: str) -> None:
    cause = ssl.SSLCertVerificationError()
    cause.verify_message = said
    error = httpx.ConnectError("TLS")
    error.__cause__ = cause

    told = unreachable("https://build.example.com", error)

    assert told.problem.detail.endswith(f"is not to be trusted: {said}")
    assert told.problem.hint == "compare the clocks of both machines: date"
