"""Each port has a suite that is asked of all that implement it, and no call of it is left out."""

import ast
import re

import pytest

from tests.unit.house.tree import ROOT, files_like


def ports() -> dict[str, list[str]]:
    """Return the calls of each port, by its name."""
    found = {}
    for file in files_like(".py", under="packages"):
        if file.name == "ports.py" or file.parent.name == "ports":
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                    found[node.name] = [
                        member.name
                        for member in node.body
                        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
                    ]
    return found


@pytest.mark.parametrize(("port", "calls"), ports().items(), ids=ports().keys())
def test_every_call_of_a_port_is_made_in_a_suite(port: str, calls: list[str]) -> None:
    suites = "\n".join(file.read_text() for file in (ROOT / "tests/contract").glob("*.py"))

    assert calls
    assert [call for call in calls if not re.search(rf"\.{call}\b", suites)] == []
