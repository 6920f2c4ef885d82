"""Every check of this project, by name: `nox -l` lists them, `nox -s NAME -- ARGS` runs one.

All sessions run in the `.venv` that tools/setup.sh made: one set of versions, exactly as locked,
and nothing to install between two checks.
"""

import os
import sys
from pathlib import Path

import nox

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent
OURS = ["packages", "tests", "tools", "benchmarks", "noxfile.py"]
FAST = ["types", "lint", "unit", "simulation", "mutants"]
# The long ones first, in parts side by side: they wait more than they compute. Small parts, so that
# no single one is left at the end.
SLOW = [
    *(f"acceptance:{part}/4" for part in range(1, 5)),
    *(f"integration:{part}/8" for part in range(1, 9)),
    "packaging:1/1",
    "contract:1/1",
]

nox.options.default_venv_backend = "none"
nox.options.sessions = ["check"]
os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
os.environ["UV_PYTHON_DOWNLOADS"] = "never"
# The tests start hundreds of processes: without compiled modules each takes seconds to begin.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def run(session: nox.Session, *command: str, **environment: str) -> None:
    """Run a command of `.venv`."""
    session.run(*command, env=environment, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint, import contracts, and the rules of the house that no tool knows."""
    run(session, "ruff", "format", "--check", *OURS)
    run(session, "ruff", "check", *OURS)
    run(session, "lint-imports")
    run(session, "pytest", "-q", "tests/unit/house", *session.posargs)


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly: packages, tests and tools."""
    run(session, "mypy", *OURS)


@nox.session
def unit(session: nox.Session) -> None:
    """Pure logic: no network, no engine, no waiting."""
    quick = ["--ignore=tests/unit/house", "--timeout=30"]  # a pure test that takes longer hangs
    run(session, "pytest", "-q", "tests/unit", *quick, *session.posargs)


@nox.session
def simulation(session: nox.Session) -> None:
    """State machines and the real services under 200 seeds of faults."""
    seeds = os.environ.get("PIERHEAD_SIM_SEEDS", "200")
    run(session, "pytest", "-q", "tests/simulation", *session.posargs, PIERHEAD_SIM_SEEDS=seeds)


@nox.session
def mutants(session: nox.Session) -> None:
    """Break the rules one by one; the simulator has to notice each."""
    run(session, "python", "tools/mutants.py", *session.posargs)


@nox.session
def rights(session: nox.Session) -> None:
    """Take out the checks of tokens one by one; the token matrix has to notice each."""
    run(session, "python", "tools/mutants.py", "--rights", *session.posargs)


@nox.session
def promise(session: nox.Session) -> None:
    """Break what lets builds pass proxies: the everyday build behind one has to notice."""
    run(session, "python", "tools/mutants.py", "--promise", *session.posargs)


@nox.session
def check(session: nox.Session) -> None:
    """All that must be green before a commit; two sessions at a time."""
    run(session, "python", "tools/lanes.py", *FAST)


@nox.session
def contract(session: nox.Session) -> None:
    """One suite per port, on the fake and on the real thing."""
    run(session, "pytest", "-q", "tests/contract", *session.posargs)


@nox.session
def packaging(session: nox.Session) -> None:
    """Each role installs alone from its wheel, in a clean venv, and its script starts."""
    run(session, "pytest", "-q", "tests/packaging", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Real databases, engines and registries."""
    run(session, "pytest", "-q", "tests/integration", *session.posargs)


@nox.session
def acceptance(session: nox.Session) -> None:
    """Real processes, started as an operator would, and a network that cuts replies."""
    run(session, "pytest", "-q", "tests/acceptance", *session.posargs)


@nox.session
def test(session: nox.Session) -> None:
    """Everything: check, then what needs real engines (root)."""
    run(session, "python", "tools/lanes.py", *FAST)
    run(session, "python", "tools/lanes.py", "--lanes", "4", "--second-look", *SLOW)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure against goals; `-- NAME` for one benchmark."""
    run(session, "python", "-m", "benchmarks", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated pages (`-- --check`: only compare), then check links and words."""
    run(session, "python", "tools/json_schema.py", *session.posargs)
    run(session, "python", "tools/error_docs.py", *session.posargs)
    run(session, "python", "tools/api_docs.py", *session.posargs)
    run(session, "python", "tools/man_page.py", *session.posargs)
    if (ROOT / "tools/state_diagrams.py").exists():
        run(session, "python", "tools/state_diagrams.py", *session.posargs)
    run(session, "pytest", "-q", "tests/unit/house/test_docs.py")


@nox.session
def soak(session: nox.Session) -> None:
    """Many seeds: `-- 5000`."""
    seeds = session.posargs[0] if session.posargs else "1000"
    run(session, "pytest", "-q", "tests/simulation", "--timeout=0", PIERHEAD_SIM_SEEDS=seeds)


@nox.session
def fix(session: nox.Session) -> None:
    """Format, and fix what tools can fix."""
    run(session, "ruff", "format", *OURS)
    run(session, "ruff", "check", "--fix", *OURS)


@nox.session
def lock(session: nox.Session) -> None:
    """Lock again after a change of dependencies: newest versions, hashes, no index address."""
    run(session, "uv", "lock", "--python", "/usr/bin/python3", *session.posargs)
    everything = ["--no-emit-workspace", "--all-packages", "--all-extras", "--group", "dev"]
    export = ["uv", "export", "--quiet", "--format", "requirements-txt", *everything]
    run(session, *export, "-o", "requirements.lock")


@nox.session
def systemd(session: nox.Session) -> None:
    """Join, build, stop and restart on a machine with a systemd that really runs (root)."""
    run(session, "python", "-m", "tools.booted", *session.posargs)


@nox.session
def bare(session: nox.Session) -> None:
    """Run a make target on a bare Debian 12 that has only git and make: `-- demo` (root)."""
    run(session, "python", "tools/bare.py", *session.posargs)
