"""What is loaded before a command says its first line, which has to come within a blink; and what
services load, which stay in memory for months.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# None of it is worth its time before something was said: making a dataclass takes as long as
# making sixty structs, and `typing_extensions` a tenth of a whole start.
HEAVY = {
    "asyncio",
    "click",
    "cryptography",
    "dataclasses",
    "httpx",
    "importlib.metadata",
    "json",
    "logging",
    "pydantic",
    "pygments",
    "rich",
    "sqlalchemy",
    "ssl",
    "tenacity",
    "typing_extensions",
    "uvicorn",
    "zstandard",
}
BUILD = """
import sys
from pierhead.protocol.cli.main import run

class First:
    def write(self, text):
        sys.stdout.write(" ".join(name for name, one in sys.modules.items() if one))
        raise SystemExit

    def flush(self):
        pass

sys.stderr = First()
run(["build", sys.argv[1]])
"""
PAGE = """
import sys
from pierhead.protocol.cli.main import run

run(["--help"])
print(*sys.modules)
"""
SERVICE = """
import runpy, sys

module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__")
except SystemExit:
    print(*(name for name, one in sys.modules.items() if one))
"""


def loaded(code: str, *words: str | Path) -> set[str]:
    """Run Python and return what it prints, word by word."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    return {*done.stdout.split()}


def test_a_build_says_its_first_line_before_it_loads_what_speaks_http(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")

    found = loaded(BUILD, tmp_path)

    assert "pierhead.router.cli.build" in found
    assert not HEAVY & found


def test_the_page_needs_nothing_of_what_commands_are_made_of() -> None:
    found = loaded(PAGE)

    assert "pierhead.protocol.cli.commands" in found
    assert not (HEAVY | {"msgspec", "typer"}) & found


@pytest.mark.parametrize(
    ("words", "all_of_it"),
    [
        (["pierhead.runner", "no such order"], "pierhead.runner.engine"),
        (["pierhead.router", "--only", "registry", "--data"], "pierhead.router.compose"),
    ],
)
def test_a_service_does_without_what_libraries_load_for_terminals(
    words: list[str], all_of_it: str, tmp_path: Path
) -> None:
    found = loaded(SERVICE, *words, tmp_path)

    assert all_of_it in found
    assert not {"rich", "pygments", "httpx._main"} & found


def test_whoever_has_read_enough_of_the_page_ends_it_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [sys.executable, "-c", PAGE.partition("print")[0]],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )

    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
