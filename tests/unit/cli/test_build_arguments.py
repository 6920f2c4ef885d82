"""What the command line of a build asks for is what is submitted, or it is refused by name."""

from pathlib import Path

import pytest

from pierhead.protocol.cli.main import run
from pierhead.protocol.cli.speak import USAGE
from pierhead.router.cli import build


@pytest.fixture
def context(tmp_path: Path) -> Path:
    root = tmp_path / "My App"
    root.mkdir()
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "other.Dockerfile").write_text("FROM scratch\n")
    return root


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[build.Asked]:
    """Collect what would be built."""
    seen: list[build.Asked] = []

    async def remember(one: build.Asked, *_: object) -> int:
        seen.append(one)
        return 0

    monkeypatch.setattr(build, "_build", remember)
    return seen


@pytest.mark.parametrize("flag", sorted(build.NOT_YET))
def test_a_flag_that_is_not_honoured_is_refused_by_name(
    flag: str, context: Path, asked: list[build.Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", f"{flag}=x", str(context)]) == USAGE
    told = capsys.readouterr().err
    assert told.startswith(f"error: {flag} is not honoured yet\n\nhint: ")
    assert asked == []


def test_build_arguments_without_a_value_come_from_the_environment(
    context: Path, asked: list[build.Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_HERE", "v")
    monkeypatch.delenv("NOT_HERE", raising=False)
    given = ["A=b=c", "EMPTY=", "FROM_HERE", "NOT_HERE"]
    arguments = [part for one in given for part in ("--build-arg", one)]

    assert run(["build", *arguments, str(context)]) == 0

    assert asked[0].plan.build_args == {"A": "b=c", "EMPTY": "", "FROM_HERE": "v"}


def test_the_project_is_the_tags_name_or_the_folders(
    context: Path, asked: list[build.Asked]
) -> None:
    run(["build", str(context)])
    run(["build", "-t", "web", "-t", "web:1.2", str(context)])
    assert [(one.project, one.tags) for one in asked] == [
        ("my-app", ()),
        ("web", ("latest", "1.2")),
    ]


def test_a_dockerfile_is_named_from_the_context_or_from_where_we_are(
    context: Path, asked: list[build.Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(context.parent)
    run(["build", "-f", "other.Dockerfile", str(context)])
    run(["build", "-f", "My App/other.Dockerfile", str(context)])
    assert [one.plan.dockerfile for one in asked] == ["other.Dockerfile", "other.Dockerfile"]


def test_a_secret_looking_argument_is_noted_without_its_value(
    context: Path, asked: list[build.Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    run(["build", "--build-arg", "NPM_TOKEN=hunter2", "--build-arg", "PLAIN=x", str(context)])
    told = capsys.readouterr().err
    assert "note      NPM_TOKEN looks like a secret" in told
    assert "hunter2" not in told
    assert "PLAIN" not in told
    assert asked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "nope"], "there is no file nope"),
        (["-f", "/etc/hostname"], "/etc/hostname is outside the context"),
        (["-t", "a", "-t", "b"], "all -t of one build have the same NAME"),
        (["-t", "ghcr.io/a/b:1"], "ghcr.io/a/b:1 names the registry ghcr.io"),
        (["-t", "localhost:5000/b"], "localhost:5000/b names the registry localhost:5000"),
        (["-t", "Web"], "'Web' is not NAME or NAME:TAG"),
        (["--label", "=x"], "'=x' is not NAME=VALUE"),
        (["--if-nobody", "maybe"], "--if-nobody is here, wait or fail"),
        (["--progress", "tty"], "--progress is auto or plain"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_packed(
    arguments: list[str],
    said: str,
    context: Path,
    asked: list[build.Asked],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["build", *arguments, str(context)]) == USAGE
    assert f"error: {said}" in capsys.readouterr().err
    assert asked == []


def test_a_folder_without_a_dockerfile_is_refused(
    tmp_path: Path, asked: list[build.Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", str(tmp_path)]) == USAGE
    assert "there is no Dockerfile in" in capsys.readouterr().err
    assert asked == []
