"""Wheels of all distributions, built once, and clean environments to install them into."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"  # what a user of Debian has, whatever runs the tests
UV = Path(sys.executable).with_name("uv")
ENVIRONMENT = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1", "COLUMNS": "100"}


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, check=False)
    assert done.returncode == 0, (command, done.stdout.decode(), done.stderr.decode())
    return done.stdout.decode()


@dataclass(frozen=True, slots=True)
class Installed:
    """One role, alone in its environment."""

    folder: Path

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the role, in a home of its own."""
        home = {"HOME": str(self.folder), "PIERHEAD_CONFIG": str(self.folder / "config")}
        return subprocess.run(
            [self.folder / "bin" / script, *arguments],
            env={**ENVIRONMENT, **home},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def has(self, module: str) -> bool:
        """Say whether a module can be imported there."""
        return self.run("python", "-c", f"import {module}").returncode == 0


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    # Against the backends that are locked, so that nothing else is fetched to build.
    isolation = ["--no-build-isolation", "--python", sys.executable]
    run(UV, "build", "--quiet", "--all-packages", "--wheel", *isolation, "-o", folder)
    return folder


@pytest.fixture(scope="session")
def install(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Installed]:
    made: dict[str, Installed] = {}

    def installed(requirement: str) -> Installed:
        if requirement not in made:
            venv = tmp_path_factory.mktemp("role") / "venv"
            run(UV, "venv", "--quiet", "--python", PYTHON, venv)
            where: list[str | Path] = ["--python", venv / "bin/python", "--find-links", wheels]
            locked: list[str | Path] = ["--constraint", ROOT / "requirements.lock"]
            run(UV, "pip", "install", "--quiet", *where, *locked, requirement)
            made[requirement] = Installed(venv)
        return made[requirement]

    return installed
