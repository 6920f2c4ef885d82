"""The line that another machine pastes."""

import pytest

from pierhead.protocol.runner import JoinCode
from pierhead.router.cli.add import join_line, tell_lines


@pytest.mark.parametrize(
    ("address", "key_pin", "begins"),
    [
        ("127.0.0.1:7443", "", "curl -LsSf http://127.0.0.1:7443/join | sh -s -- ph1_"),
        ("[::1]:7443", "", "curl -LsSf http://[::1]:7443/join | sh -s -- ph1_"),
        ("build.example.com:443", "", "curl -LsSf https://build.example.com/join | sh -s -- ph1_"),
        (
            "10.0.0.7:7443",
            "sha256//abc",
            "curl -LsSf --insecure --pinnedpubkey sha256//abc https://10.0.0.7:7443/join | sh",
        ),
    ],
)
def test_the_line_is_for_the_address_that_answers(address: str, key_pin: str, begins: str) -> None:
    code = JoinCode(
        name="desktop",
        code=f"ph1_{address}_-_{'s' * 20}",
        expires_in_seconds=900,
        key_pin=key_pin,
    )

    assert join_line(code).startswith(begins)


@pytest.mark.parametrize(
    ("address", "noted"), [("127.0.0.1:7443", True), ("[::1]:7443", True), ("10.0.0.7:7443", False)]
)
def test_who_makes_a_code_that_no_other_machine_can_use_is_told(
    capsys: pytest.CaptureFixture[str], address: str, noted: bool
) -> None:
    tell_lines(JoinCode(name="big", code=f"ph1_{address}_-_{'s' * 20}", expires_in_seconds=900))

    said = capsys.readouterr().err
    assert ("no other machine reaches the control plane" in said) == noted
    assert ("pierhead up --host 0.0.0.0" in said) == noted
