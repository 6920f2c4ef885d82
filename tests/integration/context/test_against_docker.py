"""The same ignore file leaves the same files out for us and for the BuildKit of a real dockerd.

Debian's dockerd is of 2021. What changed since is left to the unit tests: a pattern that could not
change a folder's answer, as the last of `src`, `!src/deep/er`, `src/deep`, is not inherited now.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from pierhead.protocol.archive import Kind
from pierhead.protocol.client.pack import pack
from pierhead.protocol.tree import parse_page
from tools.engine import own_engine

TREE = (
    "a", "b.md", "keep.md", "ab", "a-b", "src/main.c", "src/main.o", "src/deep/er/x.o",
    "src/deep/keep.o", "docs/README.md", "docs/x/y.txt", "docs/x/z.md", "node_modules/m/index.js",
    "node_modules/m/node_modules/n/i.js", "sub/node_modules/k.js", ".git/HEAD", ".env",
    "sub/.env.local", "build/out/1", "build/keep/2", "[x]", "sp ace/f", "x*y", "dist/app.whl",
    "dist/app.tar",
)  # fmt: skip
CASES = (
    "",
    "*.md\n!keep.md\n",
    "**/*.md\n!docs/**/*.md\n",
    "*\n!src\n!docs/x/y.txt\n",
    "*\n!src/**\nsrc/**/*.o\n!src/deep/keep.o\n",
    "node_modules\n",
    "**/node_modules\n",
    "/node_modules/\n./docs/../build\n",
    "docs\n!docs/README.md\n",
    "docs/*\n!docs/x\n",
    "build/**\n!build/keep\n",
    ".*\n!.env\n",
    "**/.env*\n",
    "a?b\n[a-b]\n",
    "\\[x]\nx\\*y\n",
    "# a comment\n\n  sp ace  \n",
    "dist/*\n!dist/*.whl\n",
    "**\n!src/main.c\n",
    "!a\n*.md\n",
    "Dockerfile\n.dockerignore\n",
    "a*\n",
    "**/deep\n",
)


def _ours(root: Path) -> set[str]:
    entries = (entry for page in pack(root).pages for entry in parse_page(page))
    return {os.fsdecode(entry.name) for entry in entries if entry.kind is Kind.FILE}


def _dockers(command: tuple[str, ...], root: Path, out: Path) -> set[str]:
    # The client that came with the daemon: newer ones want a plugin for BuildKit.
    client = ("/usr/bin/docker", *command[1:])
    subprocess.run(
        [*client, "build", "--quiet", "--output", f"type=local,dest={out}", str(root)],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        capture_output=True,
        check=True,
    )
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def test_the_same_files_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    # BuildKit takes both files along for itself, and copies them only when they are not left out.
    own = {"Dockerfile", ".dockerignore"}
    differ = {}
    with (
        # The path of a socket is short, and pytest's folders are not.
        tempfile.TemporaryDirectory(prefix="pierhead-") as short,
        own_engine(Path(short), 9, tmp_path) as engine,
    ):
        for number, text in enumerate(CASES):
            (root / ".dockerignore").write_text(text)
            theirs = _dockers(engine.command, root, tmp_path / f"out{number}")
            if theirs - own != (ours := _ours(root)) - own:
                differ[text] = (sorted(theirs - ours - own), sorted(ours - theirs - own))
    assert differ == {}
