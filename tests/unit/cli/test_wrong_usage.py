"""Every option and argument of every command: what it cannot be is refused by its name, in words.

The test walks over the commands as they are installed, so a new option without a refusal fails it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from pierhead.protocol import ids, plan, platform, project, registry
from pierhead.protocol.cli.commands import installed
from pierhead.protocol.cli.main import run
from pierhead.protocol.cli.speak import USAGE
from pierhead.protocol.cli.tree import Node, tree_of
from pierhead.protocol.shape import shape_of

# What each cannot be. By the option's name; where commands differ, by both.
WRONG = {
    "--ability": "root",
    "--acme": "letsencrypt",
    "--add-host": "db",
    "--after": "",
    "--behind-proxy": "traefik",
    "--build-arg": "=secret",
    "--ca-file": "/nowhere/ca.pem",
    "--cpus": "all",
    "--disk": "much",
    "--domain": "1.2.3.4",
    "--domain-port": "443.5",
    "--environment": "Preview",
    "--expires": "soon",
    "--fingerprint": "ab:cd",
    "--file": "no.Dockerfile",
    "--host": "host name",
    "--if-nobody": "foo",
    "--image": "UPPER",
    "--iidfile": "/nowhere/iid",
    "--keep-builds": "0",
    "--keep-logs": "-1",
    "--key": "",
    "--label": "=x",
    "--limit": "0",
    "--memory": "16X",
    "--metadata-file": "/nowhere/metadata",
    "--name": "",
    "--network": "host",
    "--on": "My Desktop",
    "--only": "router",
    "--output": "folder",
    "--pin": "ab:cd",
    "--platform": "foo",
    "--port": "99999",
    "--progress": "foo",
    "--project": "My App",
    "--public-url": "https://build.example.com/here",
    "--secret": "NPM_TOKEN",
    "--shm-size": "1",
    "--slots": "0",
    "--supersedes": "",
    "--tag": "UPPER",
    "--target": "",
    "--timeout": "x",
    "--token-file": "/nowhere/token",
    "--ulimit": "files=1",
    "--url": "build.example.com",
    "--username": "a:b",
    "BUILD_ID": "b 1",
    "CODE": "ph2_x",
    "HOST": "https://ghcr.io",
    "NAME": "",
    "PATH": "https://github.com/acme/web.git",
    "PROJECT": "My App",
    "SHELL": "tcsh",
    "TOKEN_ID": "",
    "URL": "build.example.com",
}
# Any text can be a folder, which is then made.
NEVER_WRONG = {"serve --data"}
RIGHT = {
    "BUILD_ID": "@",
    "CODE": "ph1_127.0.0.1:1_-_abcdefghijklmnop",
    "HOST": "ghcr.io",
    "NAME": "desktop",
    "PROJECT": "web",
    "SHELL": "bash",
    "TOKEN_ID": "t_1",
    "URL": "http://127.0.0.1:1",
}


@dataclass(frozen=True)
class Case:
    node: Node
    names: tuple[str, ...]  # as people may call it
    value: str

    @property
    def name(self) -> str:
        return max(self.names, key=len)

    @property
    def is_argument(self) -> bool:
        return not self.names[0].startswith("-")

    def arguments(self, folder: Path) -> list[str]:
        right = {**RIGHT, "PATH": str(folder)}
        if self.is_argument:
            right[self.names[0]] = self.value
        given = [right[name.strip("[]")] for name in self.node.arguments]
        more = [] if self.is_argument else [f"{self.name}={self.value}"]
        return [*self.node.name.split(), *more, *given]


def _leaves(node: Node) -> Iterator[Node]:
    if not node.children:
        yield node
    for child in node.children:
        yield from _leaves(child)


def _cases() -> Iterator[Case]:
    for command in installed():
        for node in _leaves(tree_of(command)):
            for argument in node.arguments:
                name = argument.strip("[]")
                if name != "TYPED":  # of the question that shells ask
                    yield Case(node, (name,), WRONG[name])
            for flag in node.flags:
                if flag.value is None:
                    yield Case(node, flag.names, "x")
                elif f"{node.name} {flag.names[-1]}" not in NEVER_WRONG:
                    yield Case(node, flag.names, WRONG[flag.names[-1]])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a context; nothing that a command writes or starts goes anywhere else."""

    def never(*_: object) -> None:
        raise AssertionError("what is wrong was let through")

    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    for name in ("PIERHEAD_CONFIG", "PIERHEAD_DATA", "PIERHEAD_RUNNER_STATE"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    monkeypatch.setattr(os, "execv", never)
    return tmp_path


@pytest.mark.parametrize("case", list(_cases()), ids=lambda case: f"{case.node.name} {case.name}")
def test_what_cannot_be_is_refused_by_its_name_with_an_example(
    case: Case, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(case.arguments(folder))

    out, err = capsys.readouterr()
    told = [line for line in err.splitlines() if line]
    assert code == USAGE
    assert out == ""
    assert any(re.search(rf"(?<!\w){name}(?!\w)", told[0]) for name in case.names)
    assert told[0].startswith("error: ")
    assert told[1].startswith("hint: ")
    assert len(told[1]) > len("hint: ")
    assert not re.search(r"Traceback|Expected `|regex|\\Z|\{\d|Input should|urn:", err)


def test_every_example_that_is_shown_is_one() -> None:
    """A hint that would be refused itself helps nobody."""
    kinds = [
        getattr(module, name)
        for module in (ids, plan, platform, project, registry)
        for name in dir(module)
        if hasattr(getattr(module, name), "__metadata__")
    ]
    examples = [(kind, shape.example) for kind in kinds if (shape := shape_of(kind)).example]
    assert len(examples) >= 8
    for kind, example in examples:
        assert msgspec.convert(example, kind) == example
