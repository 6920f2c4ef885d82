from pathlib import Path

import pytest

from pierhead.protocol.cli.service import Service, environment_text, unit_text

SERVICE = Service(
    name="pierhead",
    description="pierhead control plane",
    command=("/opt/a b/python", "-m", "pierhead.router", "--data", '/srv/50%/"x"\\$HOME'),
    folder=Path("/srv/50%"),
    module="pierhead.router",
)


def test_a_unit_starts_the_very_command_whatever_is_in_it() -> None:
    lines = unit_text(SERVICE).splitlines()
    assert (
        'ExecStart="/opt/a b/python" "-m" "pierhead.router" "--data" "/srv/50%%/\\"x\\"\\\\$$HOME"'
    ) in lines
    assert "EnvironmentFile=-/srv/50%%/pierhead.env" in lines
    # Not when somebody has to do something first.
    assert {"Restart=always", "RestartPreventExitStatus=78"} <= {*lines}
    # What is still there then is killed, so it is told when that is.
    assert {"TimeoutStopSec=90", "Environment=PIERHEAD_STOP_SECONDS=90"} <= {*lines}
    assert "WantedBy=multi-user.target" in lines


def test_a_users_unit_comes_with_the_user() -> None:
    own = Service(
        name="pierhead-runner",
        description="pierhead runner",
        command=("python",),
        folder=Path("/home/me/state"),
        module="pierhead.runner",
        user=True,
    )
    assert "WantedBy=default.target" in unit_text(own).splitlines()
    assert own.unit == Path.home() / ".config/systemd/user/pierhead-runner.service"


def test_a_service_obeys_what_its_starter_obeyed_and_learns_nothing_else() -> None:
    said = environment_text(
        {
            "HTTPS_PROXY": 'http://me:pa"ss\\word@proxy:3128',
            "no_proxy": "10.0.0.0/8",
            "PIERHEAD_CA": "",
            "PIERHEAD_TOKEN": "pho_canary",
            "HOME": "/root",
        }
    )
    assert said.splitlines() == [
        'HTTPS_PROXY="http://me:pa\\"ss\\\\word@proxy:3128"',
        'no_proxy="10.0.0.0/8"',
    ]


@pytest.mark.parametrize("value", ["a\nPIERHEAD_TOKEN=x", "a\rb"])
def test_a_value_of_several_lines_cannot_add_another(value: str) -> None:
    assert environment_text({"HTTPS_PROXY": value}) == ""
