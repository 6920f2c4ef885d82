"""What a command loads before its first line: it has to come within a blink."""

import subprocess
import sys
from pathlib import Path

HEAVY = {"click", "httpx", "pydantic", "pygments", "rich", "cryptography", "sqlalchemy", "uvicorn"}
ASKED = """
import sys
from pierhead.protocol.cli import speak

def first(line="", **_):
    print(*sorted(sys.modules))
    raise SystemExit

speak.tell = first
from pierhead.protocol.cli.main import run
run(["build", sys.argv[1]])
"""


def test_a_build_says_its_first_line_before_it_loads_what_speaks_http(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")

    done = subprocess.run(
        [sys.executable, "-c", ASKED, tmp_path], capture_output=True, text=True, check=True
    )

    loaded = {*done.stdout.split()}
    assert "pierhead.router.cli.build" in loaded
    assert not HEAVY & loaded
