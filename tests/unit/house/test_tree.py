"""The rules of the tree that no other tool checks: namespace, versions, lock, words, tests."""

import ast
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pierhead.protocol.version import RELEASE
from tests.unit.house.tree import ROOT, files, files_like

# Put together here, so that this file does not hold what it looks for.
PRIVATE = [
    "pypi" + ".org",
    "python" + "hosted",
    "artifact" + "registry",
    "/opt/" + "wheels",
    "/opt/" + "pypi",
    "/work/" + "main",
    "/work/" + "shared",
    "." + "pyenv",
]
UNFINISHED = ["TO" + "DO", "FIX" + "ME", "X" + "XX"]
UNWANTED_IN_TESTS = [
    "pytest.mark." + "skip",
    "pytest." + "skip",
    "x" + "fail(",
    "import" + "orskip",
]
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))]


def project(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads(path.read_text())["project"]
    return loaded


def requirements(loaded: dict[str, Any]) -> list[str]:
    extras = loaded.get("optional-dependencies", {}).values()
    return [*loaded["dependencies"], *chain.from_iterable(extras)]


def occurrences(words: list[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {word}"
        for path in paths
        for text in [path.read_text("utf-8", "replace")]
        for word in words
        if word in text
    ]


def test_no_file_closes_the_namespace() -> None:
    # One such file hides the other four packages.
    stray = list(ROOT.glob("packages/*/src/pierhead/__init__.py"))
    stray += ROOT.glob("packages/*/src/__init__.py")

    assert stray == []


def test_every_portion_is_typed_and_has_a_docstring() -> None:
    portions = sorted(ROOT.glob("packages/*/src/pierhead/*/__init__.py"))

    assert len(portions) == 6
    for portion in portions:
        assert portion.with_name("py.typed").exists(), portion
        assert ast.get_docstring(ast.parse(portion.read_text())), portion


def test_all_distributions_have_the_version_that_the_wire_says() -> None:
    versions = {project(path)["name"]: project(path)["version"] for path in PROJECTS}

    assert len(versions) == 6
    assert set(versions.values()) == {RELEASE}


def test_our_own_distributions_are_required_in_the_same_version() -> None:
    ours = {project(path)["name"] for path in PROJECTS}
    for path in PROJECTS:
        loaded = project(path)
        for requirement in requirements(loaded):
            name = re.split(r"[\[=<>~ ]", requirement)[0]
            assert name not in ours or requirement.endswith(f"=={RELEASE}"), (path, requirement)


def test_the_lock_has_every_dependency_with_hashes_and_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(root["dependency-groups"]["dev"])
    for path in PROJECTS:
        wanted += requirements(project(path))
    names = {re.split(r"[\[=<>~ ;]", text)[0].replace("_", "-").lower() for text in wanted}

    assert {name for name in names if not name.startswith("pierhead")} <= set(locked)
    assert lock.count("--hash=sha256:") >= len(locked)
    assert "://" not in lock


def test_the_file_that_would_hold_index_addresses_is_not_tracked() -> None:
    assert ROOT / "uv.lock" not in files()


def test_no_file_names_a_package_index_or_a_private_path() -> None:
    text = files_like(".py", ".toml", ".md", ".sh", ".lock", ".yaml", ".json", ".cfg", "")

    assert occurrences(PRIVATE, text) == []


def test_nothing_is_left_unfinished() -> None:
    assert occurrences(UNFINISHED, files_like(".py", ".sh", ".md", ".toml")) == []


def test_no_test_is_switched_off() -> None:
    assert occurrences(UNWANTED_IN_TESTS, files_like(".py", under="tests")) == []


def functions(tree: ast.Module) -> dict[str, ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}


def can_fail(function: ast.AST, known: dict[str, ast.AST], seen: frozenset[str]) -> bool:
    """A test can fail when it asserts, expects an exception, or calls what does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in {"raises", "fail"} or called.startswith(("assert_", "check_", "expect_")):
            return True
        deeper = known.get(called) if called not in seen else None
        if deeper is not None and can_fail(deeper, known, seen | {called}):
            return True
    return False


@pytest.mark.parametrize(
    "path",
    [path for path in files_like(".py", under="tests") if path.name.startswith("test_")],
    ids=lambda path: str(path.relative_to(ROOT / "tests")),
)
def test_every_test_can_fail(path: Path) -> None:
    known = functions(ast.parse(path.read_text()))
    tests = {name: node for name, node in known.items() if name.startswith("test_")}

    assert tests
    assert [name for name, node in tests.items() if not can_fail(node, known, frozenset())] == []
