"""What the command line of a build asks for is what is submitted, or it is refused by name."""

import io
from pathlib import Path

import pytest

from pierhead.protocol.cli.main import run
from pierhead.protocol.cli.speak import REFUSED, USAGE
from pierhead.protocol.plan import Plan
from pierhead.router.cli import carry, flags
from pierhead.router.cli.asked import Asked
from pierhead.router.cli.flags import Output


@pytest.fixture
def context(tmp_path: Path) -> Path:
    root = tmp_path / "My App"
    root.mkdir()
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "other.Dockerfile").write_text("FROM scratch\n")
    return root


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Collect what would be built."""
    seen: list[Asked] = []

    def remember(one: Asked, *_: object) -> int:
        seen.append(one)
        return 0

    monkeypatch.setattr(carry, "carry", remember)
    return seen


@pytest.mark.parametrize("flag", sorted(flags.REFUSED))
def test_a_flag_that_is_not_honoured_is_refused_by_name(
    flag: str, context: Path, asked: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", f"{flag}=x", str(context)]) == USAGE
    told = capsys.readouterr().err
    assert told.startswith(f"error: {flag} is not honoured\n\nhint: ")
    assert asked == []


def test_build_arguments_without_a_value_come_from_the_environment(
    context: Path, asked: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_HERE", "v")
    monkeypatch.delenv("NOT_HERE", raising=False)
    given = ["A=b=c", "EMPTY=", "FROM_HERE", "NOT_HERE"]
    arguments = [part for one in given for part in ("--build-arg", one)]

    assert run(["build", *arguments, str(context)]) == 0

    assert asked[0].plan.build_args == {"A": "b=c", "EMPTY": "", "FROM_HERE": "v"}


def test_the_project_is_the_tags_name_or_the_folders(context: Path, asked: list[Asked]) -> None:
    run(["build", str(context)])
    run(["build", "-t", "web", "-t", "web:1.2", str(context)])
    assert [(one.project, one.tags) for one in asked] == [
        ("my-app", ()),
        ("web", ("latest", "1.2")),
    ]


def test_a_dockerfile_is_named_from_the_context_or_from_where_we_are(
    context: Path, asked: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(context.parent)
    run(["build", "-f", "other.Dockerfile", str(context)])
    run(["build", "-f", "My App/other.Dockerfile", str(context)])
    assert [one.plan.dockerfile for one in asked] == ["other.Dockerfile", "other.Dockerfile"]


def test_a_secret_looking_argument_is_refused_with_what_to_type_instead(
    context: Path, asked: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--build-arg", "NPM_TOKEN=hunter2", "--build-arg", "PLAIN=x", str(context)]

    assert run(["build", *arguments]) == REFUSED

    assert capsys.readouterr().err == (
        "error: NPM_TOKEN looks like a secret, and build arguments stay readable in the image\n\n"
        "hint: pierhead build --secret id=npm,env=NPM_TOKEN .   and in the Dockerfile: "
        "RUN --mount=type=secret,id=npm,env=NPM_TOKEN npm ci\n"
        "      (really not a secret: --allow-secret-args)\n"
    )
    assert asked == []
    assert run(["build", "--allow-secret-args", *arguments]) == 0
    assert asked[0].allow_secret_args


SOURCES = [
    ("id=npm,env=NPM_TOKEN", b"from the environment"),
    ("type=env,id=npm,env=NPM_TOKEN", b"from the environment"),
    ("id=npm,type=env,src=NPM_TOKEN", b"from the environment"),
    ("id=NPM_TOKEN", b"from the environment"),  # as docker: a variable of that name, or a file
    ("id=npm,src={file}", b"from\0a\nfile\xff\n"),
    ("id=npm,type=file,source={file}", b"from\0a\nfile\xff\n"),
    ("id=a-file", b"from\0a\nfile\xff\n"),
    ('id=npm,"src={comma}"', b"a comma in its name"),
    ("id=npm,src=/dev/null", b""),
]


@pytest.mark.parametrize(("text", "value"), SOURCES)
def test_a_secret_comes_from_where_docker_would_take_it(
    text: str,
    value: bytes,
    context: Path,
    asked: list[Asked],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(context.parent)
    monkeypatch.setenv("NPM_TOKEN", "from the environment")
    Path("a-file").write_bytes(b"from\0a\nfile\xff\n")
    Path("a,b").write_bytes(b"a comma in its name")
    text = text.format(file=Path("a-file").absolute(), comma="a,b")

    assert run(["build", "--secret", text, str(context)]) == 0

    assert list(asked[0].secrets.values()) == [value]
    assert "from the environment" not in repr(asked[0])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["env=X"], "--secret needs an id"),
        (["id=../x,env=X"], "--secret needs an id: letters, digits, "),
        (["id=a/b"], "--secret needs an id: letters, digits, "),
        (["id=npm,mode=400"], "--secret does not know 'mode'"),
        (["npm"], "--secret does not know 'npm'"),
        (["id=npm,type=vault,src=x"], "--secret knows the types file and env, not 'vault'"),
        (["id=npm,env=NOT_SET_ANYWHERE"], "the environment variable NOT_SET_ANYWHERE of --secret"),
        (["id=npm,src=nowhere"], "the file nowhere of --secret id=npm: No such file"),
        (["id=npm,src=/"], "the file / of --secret id=npm: Is a directory"),
        (["id=npm,src=/dev/null", "id=npm,env=PATH"], "--secret id=npm is given twice"),
        (["id=npm,src=/dev/zero"], "the secrets are larger than 512 KiB together"),
        ([f"id=s{number},src=/dev/null" for number in range(129)], "a build has at most 128"),
    ],
)
def test_a_secret_that_cannot_be_had_is_refused_before_anything_is_packed(
    texts: list[str],
    said: str,
    context: Path,
    asked: list[Asked],
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [part for text in texts for part in ("--secret", text)]

    assert run(["build", *given, str(context)]) == USAGE

    assert f"error: {said}" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-f", "nope"], "-f nope: there is no such file, neither here nor in "),
        (["-t", "a", "-t", "b"], "all -t of one build have the same NAME"),
        (["-t", "ghcr.io/a/b:1"], "-t ghcr.io/a/b:1 names the registry ghcr.io"),
        (["-t", "localhost:5000/b"], "-t localhost:5000/b names the registry localhost:5000"),
        (["-t", "Web"], "-t: 'Web' is not NAME or NAME:TAG"),
        (["--label", "=x"], "--label has no name before the ="),
        (
            ["--if-nobody", "maybe"],
            "--if-nobody has to be one of here, wait, fail, and not 'maybe'",
        ),
        (["--progress", "tty"], "--progress has to be one of auto, plain, quiet, and not 'tty'"),
        (["--network", "host"], "--network host is not honoured"),
        (["--platform", "linux/a,linux/b,linux/c,linux/d,linux/e"], "--platform: 5 platforms"),
        (["--platform", "linux/amd64,linux/arm64", "-o", "image.tar"], "-o and --load are for an"),
        (["--platform", "amd64"], "--platform has to be OS/ARCHITECTURE, "),
        (["--add-host", "db"], "--add-host has to be NAME:ADDRESS, the address in numbers, "),
        (["--add-host", "db:host-gateway"], "--add-host of host-gateway is not honoured"),
        (["--environment", "No Such"], "--environment has to be lowercase letters and digits, "),
        (["--on", "Desk Top"], "--on has to be lowercase letters and digits, "),
        (["--ulimit", "files=1"], "--ulimit has to be NAME=SOFT:HARD, "),
        (["--shm-size", "1t"], "--shm-size is 64k to 64g, not '1t'"),
        (["-o", "out"], "-o into a folder is not honoured"),
        (["-o", "type=local,dest=out"], "-o into a folder is not honoured"),
        (["-o", "type=cacheonly"], "-o type=cacheonly is not honoured"),
        (["-o", "type=oci"], "-o type=oci needs a file"),
        (["-o", "type=oci,dest=x,compression=zstd"], "-o compression=... is not honoured"),
        (["-o", "/no/such/folder/x.tar"], "-o /no/such/folder/x.tar: there is no folder /no"),
        (["--iidfile", "/no/such/folder/id"], "--iidfile /no/such/folder/id: there is no "),
        (["--detach", "-o", "x.tar"], "--detach does not wait for the image"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_packed(
    arguments: list[str],
    said: str,
    context: Path,
    asked: list[Asked],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["build", *arguments, str(context)]) == USAGE
    assert f"error: {said}" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ("-", "PATH has to be a folder, and not standard input"),
        ("https://example.org/a.git", "PATH has to be a folder, and not https://example.org/a.git"),
        (
            "git@example.org:a/b.git#main",
            "PATH has to be a folder, and not git@example.org:a/b.git#main",
        ),
        ("github.com/a/b", "PATH has to be a folder, and not github.com/a/b"),
    ],
)
def test_a_context_that_is_no_folder_is_refused_with_the_way(
    context: str, said: str, asked: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", context]) == USAGE
    told = capsys.readouterr().err
    assert f"error: {said}" in told
    assert "\nhint: " in told
    assert asked == []


def test_every_flag_of_the_plan_reaches_it(context: Path, asked: list[Asked]) -> None:
    given = [
        *("--target", "web", "--label", "a=b", "--label", "c", "--platform", "linux/aarch64"),
        *("--no-cache", "--pull=true", "--network", "none", "--timeout", "60"),
        *("--add-host", "db=10.0.0.1", "--add-host", "six:[fd00::1]", "--shm-size", "256m"),
        *("--ulimit", "nofile=1024:4096", "--ulimit", "core=-1"),
    ]

    assert run(["build", *given, str(context)]) == 0

    assert asked[0].plan == Plan(
        target="web",
        labels={"a": "b", "c": ""},
        platform="linux/arm64",
        no_cache=True,
        pull=True,
        network="none",
        timeout_seconds=60,
        add_hosts=("db:10.0.0.1", "six:fd00::1"),
        shm_bytes=256 * 2**20,
        ulimits=("nofile=1024:4096", "core=-1"),
    )


def test_a_dockerfile_from_elsewhere_is_put_into_the_context(
    context: Path, asked: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = context.parent / "generated"
    elsewhere.write_bytes(b"FROM scratch\n# outside")
    piped = io.TextIOWrapper(io.BytesIO(b"FROM scratch\n# piped"))
    monkeypatch.setattr("sys.stdin", piped)

    assert run(["build", "-f", str(elsewhere), str(context)]) == 0
    assert run(["build", "-f", "-", str(context)]) == 0

    assert [one.plan.dockerfile for one in asked] == [".pierhead.Dockerfile"] * 2


def test_where_and_for_what_a_build_is_meant(context: Path, asked: list[Asked]) -> None:
    run(["build", "--environment", "preview", "--on", "desktop,here", "--on", "pi", str(context)])
    run(["build", "--supersedes", "web:main", str(context)])
    assert [(one.environment, one.on, one.supersedes) for one in asked] == [
        ("preview", ("desktop", "here", "pi"), None),
        ("production", (), "web:main"),
    ]


def test_what_is_so_anyway_is_taken_and_changes_nothing(context: Path, asked: list[Asked]) -> None:
    given = ["--push", "--rm", "--force-rm", "--provenance=false", "--sbom=false", "--load=false"]
    run(["build", str(context)])
    assert run(["build", *given, "-o", "type=registry", "--pull=false", str(context)]) == 0
    assert asked[0] == asked[1]


def test_outputs_are_files_of_three_kinds(context: Path, asked: list[Asked]) -> None:
    given = ["-o", "out.tar", "-o", "type=oci,dest=a", "-o", "dest=b,type=tar", "-o", "-"]
    run(["build", *given, str(context)])
    assert asked[0].wish.outputs == (
        Output("docker", "out.tar"),
        Output("oci", "a"),
        Output("tar", "b"),
        Output("tar", "-"),
    )


def test_a_flag_after_two_dashes_is_a_path(
    asked: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", "--", "--squash"]) == USAGE
    assert "--squash is not a folder" in capsys.readouterr().err


def test_a_folder_without_a_dockerfile_is_refused(
    tmp_path: Path, asked: list[Asked], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", str(tmp_path)]) == USAGE
    assert "there is no Dockerfile in" in capsys.readouterr().err
    assert asked == []
