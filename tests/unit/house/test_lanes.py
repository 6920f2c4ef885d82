"""A run of many sessions: what little fails beside others is looked at once more, alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LANES = ROOT / "tools/lanes.py"
NOXFILE = """\
import nox
nox.options.default_venv_backend = "none"
"""
SESSION = """
@nox.session
def {name}(session):
    files = ["test_first.py", "test_{name}.py"]
    session.run("{python}", "-m", "pytest", "-q", *files, *session.posargs, external=True)
"""
CONFTEST = "from tests.conftest import pytest_addoption, pytest_collection_modifyitems\n"
UNSTEADY = """\
from pathlib import Path
def test_good():
    with open("good", "a") as seen:
        seen.write("x")
def test_once():
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""
TESTS = {
    "good": "def test_good(): pass\n",
    "bad": "def test_bad(): assert 0\n",
    "once": UNSTEADY,
    "many": "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_bad(n): assert 0\n",
    "unread": "import nothing_of_that_name\n",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    sessions = (SESSION.format(name=name, python=sys.executable) for name in TESTS)
    (tmp_path / "noxfile.py").write_text(NOXFILE + "".join(sessions))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_first.py").write_text("def test_first(): pass\n")
    for name, text in TESTS.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    return tmp_path


def lanes(house: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, str(LANES), *words]
    ours = {**os.environ, "PYTHONPATH": str(ROOT)}  # for the parts of the tests
    done = subprocess.run(command, cwd=house, env=ours, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_what_passes_alone_is_named_and_does_not_fail_the_run(house: Path) -> None:
    code, said = lanes(house, "--second-look", "good:1/1", "once:2/2")
    assert code == 0
    assert "AssertionError: the first time" in said
    assert "failed beside others: test_once.py::test_once" in said
    assert (house / "good").read_text() == "x"  # what passed is not run again


@pytest.mark.parametrize("name", ["bad", "unread"])
def test_what_fails_alone_fails_the_run(house: Path, name: str) -> None:
    code, said = lanes(house, "--second-look", f"{name}:2/2", "once:2/2")
    assert code == 1
    assert f"FAILED {name}:2/2" in said


def test_where_too_much_fails_nothing_is_looked_at_again(house: Path) -> None:
    assert lanes(house, "--second-look", "many:2/2", "once:2/2")[0] == 1
    assert lanes(house, "--second-look", "once:2/2")[0] == 0  # `once` was run but once


def test_without_a_second_look_a_failed_test_fails_the_run(house: Path) -> None:
    assert lanes(house, "once:2/2")[0] == 1
    assert lanes(house, "once:2/2")[0] == 0
