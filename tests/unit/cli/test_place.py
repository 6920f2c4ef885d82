"""Which token goes to which control plane."""

import json
from pathlib import Path

import pytest

from pierhead.protocol.cli.place import find_place, note_local, note_place


@pytest.fixture(autouse=True)
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on a machine with a control plane: its owner's token lies in the folder."""
    for name in ("PIERHEAD_URL", "PIERHEAD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIERHEAD_CONFIG", str(tmp_path))
    (tmp_path / "token").write_text("pho_owner")


@pytest.mark.parametrize(
    "url",
    [
        "https://elsewhere.example",
        "http://192.0.2.7:7443",
        "https://127.0.0.1.example",
        "https://127.0.0.1@elsewhere.example",
        "http://localhost.example:7443/",
        "http://[::2]:7443",
        "http://[bad",
        "elsewhere",
    ],
)
def test_the_owners_token_is_shown_to_no_other_machine(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIERHEAD_URL", url)

    assert find_place().token is None
    assert find_place(url).token is None


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9999", "http://localhost:7443/", "http://[::1]:7443", None]
)
def test_the_owners_token_is_for_this_machine(url: str | None) -> None:
    assert find_place(url).token == "pho_owner"


def test_the_owners_token_goes_where_its_control_plane_was_noted() -> None:
    note_local("https://192.0.2.1:7443")

    assert find_place().token == "pho_owner"
    assert find_place("https://192.0.2.1:7443/").token == "pho_owner"
    assert find_place("https://192.0.2.2:7443").token is None


def test_the_address_for_others_is_this_machines_own_too(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("the authority")
    note_local("http://127.0.0.1:7443", "https://192.0.2.1:7443")

    own = find_place("https://192.0.2.1:7443/")

    assert (own.token, own.ca, own.chosen) == ("pho_owner", "the authority", True)
    assert find_place("https://192.0.2.1:7444").token is None
    assert find_place("http://192.0.2.1:7443").token is None
    assert (find_place().url, find_place().ca) == ("http://127.0.0.1:7443", None)


def test_a_login_elsewhere_without_a_token_is_not_helped_out(tmp_path: Path) -> None:
    (tmp_path / "context.json").write_text(json.dumps({"url": "https://elsewhere.example"}))

    assert find_place().token is None


def test_a_token_that_was_given_goes_where_it_was_given_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    note_place("https://elsewhere.example/", "php_theirs", None)

    assert find_place().token == "php_theirs"
    assert find_place("https://other.example").token is None
    monkeypatch.setenv("PIERHEAD_TOKEN", "php_said")
    assert find_place("https://other.example").token == "php_said"
