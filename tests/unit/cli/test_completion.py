"""What a shell is told while somebody types, and where its script goes."""

from pathlib import Path

import pytest

from pierhead.protocol.cli import completion
from pierhead.protocol.cli.completion import FILES, SCRIPTS, candidates
from pierhead.protocol.cli.main import run
from pierhead.protocol.cli.speak import USAGE


def words(*typed: str) -> list[str]:
    return [line.partition("\t")[0] for line in candidates(typed)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as a control plane would."""
    monkeypatch.setattr(
        completion, "_builds", lambda: ["b_7f3k\tweb, failed", "b_81aa\tapi, queued"]
    )
    monkeypatch.setattr(completion, "_projects", lambda: ["api", "web"])
    monkeypatch.setattr(completion, "_runners", lambda: ["desktop", "here"])


def test_commands_come_first_and_say_what_they_do() -> None:
    assert words("bui") == ["build", "builds"]
    assert "builds\tlist, show, follow, repeat and cancel builds" in candidates(["builds"])
    assert words("nothing", "") == []


def test_flags_of_a_command_are_its_own() -> None:
    assert words("build", "--no") == ["--no-cache"]
    assert words("builds", "ls", "--m") == ["--mine"]


def test_a_group_has_its_commands() -> None:
    assert words("builds", "r") == ["rerun", "run-here"]


@pytest.mark.usefixtures("asked")
def test_ids_projects_and_runners_are_the_control_planes() -> None:
    assert words("builds", "watch", "b_7") == ["b_7f3k"]
    assert words("build", "--project", "") == ["api", "web"]
    assert words("build", "--on", "d") == ["desktop"]


def test_values_are_choices_or_files() -> None:
    assert words("build", "--if-nobody", "") == ["here", "wait", "fail"]
    assert words("build", "--iidfile", "") == [FILES]
    assert words("build", "-t", "web", "") == [FILES]


def test_a_control_plane_that_is_away_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIERHEAD_URL", "http://127.0.0.1:1")
    assert words("builds", "watch", "") == []


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", "data/bash-completion/completions/pierhead"),
        ("zsh", "data/zsh/site-functions/_pierhead"),
        ("fish", "config/fish/completions/pierhead.fish"),
    ],
)
def test_a_script_goes_where_its_shell_looks(
    shell: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")

    assert run(["completion", "install"]) == 0

    assert capsys.readouterr().out == f"{tmp_path / place}\n"
    assert (tmp_path / place).read_text() == SCRIPTS[shell]


def test_a_shell_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "show", "tcsh"]) == USAGE
    assert "SHELL has to be one of bash, zsh, fish, and not 'tcsh'" in capsys.readouterr().err
