"""Each role installs alone from its wheel, on Debian's own Python, and its script starts.

The environments are clean, so whatever a role needs and does not declare is missing here.
"""

import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pierhead.protocol.version import RELEASE
from tests.packaging.conftest import PYTHON, Installed, run

Install = Callable[[str], Installed]

ROLES = [
    ("pierhead-router", "pierhead-router"),
    ("pierhead-router[server]", "pierhead-router"),
    ("pierhead-runner", "pierhead-runner"),
    ("pierhead-cluster", "pierhead-cluster"),
    ("pierhead-dispatch", "pierhead-dispatch"),
    ("pierhead", "pierhead"),
    ("pierhead[all]", "pierhead"),
]


@pytest.mark.parametrize(("requirement", "script"), ROLES)
def test_a_role_alone_starts(install: Install, requirement: str, script: str) -> None:
    shown = install(requirement).run(script, "--help")

    assert shown.returncode == 0, shown.stderr
    assert "COMMAND --help" in shown.stdout
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("requirement", "shown", "absent"),
    [
        ("pierhead-router", {"build", "builds"}, {"join", "doctor"}),
        ("pierhead-runner", {"runner", "join", "doctor"}, {"build", "serve"}),
        ("pierhead[all]", {"build", "builds", "serve", "up", "runner", "join", "doctor"}, set()),
    ],
)
def test_help_shows_what_is_installed_and_nothing_else(
    install: Install, requirement: str, shown: set[str], absent: set[str]
) -> None:
    script = requirement.partition("[")[0]
    words = set(install(requirement).run(script, "--help").stdout.split())

    assert shown <= words
    assert not absent & words


def test_the_manual_page_comes_with_every_role(install: Install) -> None:
    page = install("pierhead-router").folder / "share/man/man1/pierhead.1"
    assert ".SH NAME\npierhead " in page.read_text()


def test_whoever_only_submits_installs_nothing_of_a_server(install: Install) -> None:
    submitter = install("pierhead-router")

    assert submitter.has("pierhead.router")
    for module in ("starlette", "uvicorn", "sqlalchemy", "pierhead.runner"):
        assert not submitter.has(module), module


def test_an_importer_gets_the_whole_library_from_the_base(install: Install) -> None:
    program = (
        "import pierhead, sys\n"
        "from pierhead.router import BuildRequest, DirectoryContext, RoutedImageBuilder, blocking\n"
        "from pierhead.router.testing import ScriptedExecutor\n"
        "request = BuildRequest(context=DirectoryContext(path='.'), project='acme/web')\n"
        "with blocking(RoutedImageBuilder(ScriptedExecutor())) as builder:\n"
        "    print(builder.build(request).reference)\n"
        "assert pierhead.__file__ is None, 'the namespace is open'\n"
        "assert not {'starlette', 'sqlalchemy', 'uvicorn', 'typer'} & sys.modules.keys()\n"
    )
    done = install("pierhead-router").run("python", "-W", "error", "-c", program)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("build.example.com/acme/web@sha256:")


def test_a_runner_installs_nothing_of_a_server(install: Install) -> None:
    runner = install("pierhead-runner")

    assert runner.has("pierhead.runner")
    for module in ("starlette", "uvicorn", "sqlalchemy", "pierhead.router"):
        assert not runner.has(module), module


@pytest.mark.parametrize(
    ("requirement", "script", "command", "hint"),
    [
        ("pierhead-router", "pierhead-router", "serve", "pierhead-router[server]"),
        ("pierhead", "pierhead", "build", "pierhead-router"),
        ("pierhead", "pierhead", "runner", "pierhead-runner"),
    ],
)
def test_a_command_that_is_not_installed_says_what_to_install(
    install: Install, requirement: str, script: str, command: str, hint: str
) -> None:
    refused = install(requirement).run(script, command)

    assert refused.returncode in {1, 2, 3}
    assert hint in refused.stderr
    assert "Traceback" not in refused.stderr


def test_plain_pip_installs_a_role_from_the_wheels(wheels: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(PYTHON, "-m", "venv", venv)
    run(venv / "bin/pip", "install", "--quiet", "--find-links", wheels, "pierhead-runner")

    started = subprocess.run([venv / "bin/pierhead-runner", "--help"], check=False)
    assert started.returncode == 0


def test_each_wheel_holds_its_portion_typed_and_leaves_the_namespace_open(wheels: Path) -> None:
    portions = {
        "pierhead_protocol": {"protocol", "server"},
        "pierhead_router": {"router"},
        "pierhead_runner": {"runner"},
        "pierhead_cluster": {"cluster"},
        "pierhead_dispatch": {"dispatch"},
        "pierhead": set(),
    }
    for name, wanted in portions.items():
        [wheel] = wheels.glob(f"{name}-{RELEASE}-*.whl")
        inside = set(zipfile.ZipFile(wheel).namelist())
        found = {path.split("/")[1] for path in inside if re.match("pierhead/.", path)}
        assert found == wanted
        assert all(f"pierhead/{portion}/py.typed" in inside for portion in wanted)
