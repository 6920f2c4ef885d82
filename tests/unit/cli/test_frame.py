"""Whatever goes wrong, `pierhead` says it in one sentence, with a next step and the right code."""

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
import typer

from pierhead.protocol.cli import commands, running
from pierhead.protocol.cli import main as frame
from pierhead.protocol.cli.commands import COMMANDS, Command
from pierhead.protocol.cli.speak import INTERRUPTED, OK, REFUSED, UNAVAILABLE, USAGE, Progress
from pierhead.protocol.errors import Invalid, PierheadError, Refused, Unavailable
from pierhead.protocol.problem import PROBLEM_TYPES, REMEDIES, Problem, problem
from tests.unit.house.tree import ROOT

RAISES: dict[str, BaseException] = {}


def command(name: str, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Raise what a test has put under a name."""
    del as_json
    raise RAISES[name]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Command("everyday", "build", "", "", f"{__name__}:command")
    monkeypatch.setattr(running, "find", lambda name: there if name == "build" else None)


def raised(error: BaseException, *more: str) -> int:
    RAISES["it"] = error
    return frame.run(["build", "it", *more])


def test_only_what_is_installed_is_shown() -> None:
    shown = frame.page([one for one in COMMANDS if one.name in {"login", "doctor"}])
    assert "doctor" in shown
    assert "login" in shown
    assert "build " not in shown


def test_the_table_has_every_command_that_the_distributions_declare() -> None:
    declared: dict[str, str] = {}
    for project in (ROOT / "packages").glob("*/pyproject.toml"):
        points = tomllib.loads(project.read_text())["project"].get("entry-points", {})
        declared |= points.get(commands.GROUP, {})
    assert {one.name: one.target for one in COMMANDS} == declared
    assert all(one.installed for one in COMMANDS)


def test_a_command_whose_code_is_not_there_is_not_installed() -> None:
    assert not Command("more", "x", "", "", "pierhead.nowhere.cli.x:command").installed


def test_other_distributions_add_commands_and_cannot_replace_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs-1.0.dist-info"
    theirs.mkdir()
    (theirs / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (theirs / "entry_points.txt").write_text(
        "[console_scripts]\nelse = their:main\n\n"
        f"[{commands.GROUP}]\nship = their.cli:app\nbuild = their.cli:build\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert [one.name for one in commands.installed() if one not in COMMANDS] == ["ship"]
    assert commands.find("ship") == Command("more", "ship", "of theirs", "theirs", "their.cli:app")
    assert commands.find("else") is None


@pytest.mark.usefixtures("only")
def test_a_command_of_another_distribution_says_what_to_install(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert frame.run(["doctor"]) == USAGE
    assert capsys.readouterr().err == (
        "error: the command doctor is not installed on this machine\n\n"
        "hint: pip install 'pierhead-runner'\n"
    )


@pytest.mark.usefixtures("only")
@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("starlette.applications", "pip install 'pierhead-router[server]'"),
        ("pierhead.runner.app", "pip install 'pierhead-runner'"),
        ("something_else", "install something_else beside pierhead"),
    ],
)
def test_a_missing_module_names_what_brings_it(
    module: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raised(ModuleNotFoundError("no", name=module)) == USAGE
    assert capsys.readouterr().err.endswith(f"hint: {hint}\n")


@pytest.mark.usefixtures("only")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(problem("not-allowed", "no")), REFUSED),
        (Invalid(problem("invalid-document", "no")), USAGE),
        (Invalid(problem("plan-unsupported", "no")), REFUSED),
        (Unavailable(problem("draining", "no")), UNAVAILABLE),
    ],
)
def test_a_problem_is_told_in_words_and_ends_with_its_code(
    error: PierheadError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raised(error) == code
    hint = REMEDIES[error.problem.slug]
    assert capsys.readouterr() == ("", f"error: no\n\nhint: {hint}\n")


@pytest.mark.usefixtures("only")
def test_a_file_that_cannot_be_read_is_named_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert raised(PermissionError(13, "Permission denied", b"/root/odd\xff")) == REFUSED
    assert capsys.readouterr().err == (
        "error: Permission denied: /root/odd\ufffd\n\nhint: look at its path and its rights\n"
    )


def test_there_is_something_to_do_about_every_kind_of_problem() -> None:
    assert PROBLEM_TYPES.keys() == REMEDIES.keys()
    assert all(problem(slug, "no").hint == REMEDIES[slug] for slug in PROBLEM_TYPES)
    assert problem("not-found", "no", hint="look").hint == "look"


@pytest.mark.usefixtures("only")
def test_a_refusal_of_an_older_control_plane_without_a_hint_gets_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    older = msgspec.structs.replace(problem("in-use", "no"), hint=None)
    assert raised(Refused(older)) == REFUSED
    assert capsys.readouterr().err == f"error: no\n\nhint: {REMEDIES['in-use']}\n"


@pytest.mark.usefixtures("only")
def test_an_interrupt_ends_with_130_and_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert raised(KeyboardInterrupt()) == INTERRUPTED
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("only")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["build"], "error: NAME is missing\n\nhint: pierhead build NAME\n"),
        (["build", "it", "--nope"], "error: pierhead build has no option --nope\n\nhint: pierhead"),
        (
            ["build", "it", "--jso"],
            "error: pierhead build has no option --jso\n\nhint: --json? all of them: pierhead ",
        ),
        (
            ["build", "it", "that"],
            "error: pierhead build does not take that\n\nhint: pierhead build",
        ),
        (["nothing"], "error: there is no command nothing\n\nhint: pierhead --help\n"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_type(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.run(arguments) == USAGE
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["builds", "--mine"], "pierhead builds ls --mine"),
        (["builds", "log", "-f", "@"], "pierhead builds watch BUILD_ID follows it"),
    ],
)
def test_an_option_of_a_neighbour_is_told_with_that(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.run(arguments) == USAGE
    assert capsys.readouterr().err.endswith(f"\n\nhint: {hint}\n")


def test_a_page_is_the_answer_to_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.run([]) == OK
    assert capsys.readouterr().out.startswith("Build container images somewhere else, ")


def test_a_long_upload_says_amount_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("pierhead.protocol.cli.speak.time.monotonic", lambda: now[0])
    progress = Progress("upload", 50_000_000)
    progress.at(1_000_000)
    now[0] += 5
    progress.at(10_000_000)

    told = capsys.readouterr().err
    assert told == "upload    10.0 MB of 50.0 MB at 2.0 MB/s, 20.0 s left\n"


@pytest.mark.usefixtures("only")
def test_with_json_whatever_goes_wrong_is_a_problem_document_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert raised(Refused(problem("not-allowed", "no", hint="ask")), "--json") == REFUSED
    assert frame.run(["build", "it", "--json", "--nope"]) == USAGE
    assert frame.run(["nothing"]) == USAGE

    out, err = capsys.readouterr()
    first, second = (msgspec.json.decode(line, type=Problem) for line in out.splitlines())
    assert (first.slug, first.detail, first.hint) == ("not-allowed", "no", "ask")
    assert (second.type, second.status) == ("about:blank", 400)
    assert second.detail == "pierhead build has no option --nope"
    assert err.startswith("error: there is no command nothing")
