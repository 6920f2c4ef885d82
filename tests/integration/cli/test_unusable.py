"""Folders and databases that a control plane cannot use: what each way to start one says."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.test_commands import PIERHEAD
from tests.ports import free_port
from tests.small_disk import small_disk

STARTS = ("serve", "up", "build")
NOBODY = 65534


def start(folder: Path, data: Path, how: str) -> subprocess.CompletedProcess[str]:
    app = folder / "app"
    app.mkdir(exist_ok=True)
    (app / "Dockerfile").write_text("FROM scratch\n")
    words = {"serve": ["--no-here"], "up": [], "build": [str(app)]}[how]
    port = [] if how == "build" else ["--port", str(free_port())]
    mine = {"PIERHEAD_DATA": str(data), "PIERHEAD_CONFIG": str(folder / "config")}
    return subprocess.run(
        [PIERHEAD, how, *words, *port],
        env={**os.environ, **mine, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def refusal(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    error, _, hint = done.stderr.partition("error: ")[2].partition("\n\nhint: ")
    return error, hint.strip()


@pytest.mark.usefixtures("nobody_named")
@pytest.mark.parametrize("how", STARTS)
def test_a_full_disk_is_told_with_what_is_free_before_anything_starts(
    tmp_path: Path, tiny_disk: Path, how: str
) -> None:
    (tiny_disk / "junk").write_bytes(bytes(3_500_000))
    error, hint = refusal(start(tmp_path, tiny_disk / "data", how))
    assert error.startswith(f"the disk of {tiny_disk / 'data'} is full: ")
    assert error.endswith("kB of 4.2 MB are free")
    assert hint == "free some space there, or keep the data elsewhere: PIERHEAD_DATA=DIR"
    (tiny_disk / "junk").unlink()
    assert [file for file in tiny_disk.rglob("*") if file.is_file()] == []


@pytest.mark.usefixtures("nobody_named")
def test_a_disk_for_reading_only_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "ro,size=64m") as disk:
        error, hint = refusal(start(tmp_path, disk / "data", "serve"))
        assert error == f"the disk of {disk / 'data'} is mounted for reading only"
        assert hint.startswith("mount it for writing")


@pytest.mark.usefixtures("nobody_named")
@pytest.mark.parametrize(
    ("how", "version", "table", "said"),
    [
        ("serve", 0, "moz_places", "is a database of something else"),
        ("serve", 99, "router_builds", "is of a newer release: it has version 99"),
        ("up", 1, "router_builds", "is of an older release: it has version 1"),
        *((how, None, "", "is not a database") for how in STARTS),
    ],
)
def test_a_database_that_cannot_be_ours_is_named_and_left_alone(
    tmp_path: Path, how: str, version: int | None, table: str, said: str
) -> None:
    path = tmp_path / "data" / "router.db"
    path.parent.mkdir()
    if version is None:
        path.write_bytes(os.urandom(5000))
    else:
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute(f"CREATE TABLE {table} (n)")
            database.execute(f"PRAGMA user_version={version}")
    before = path.read_bytes()
    error, hint = refusal(start(tmp_path, path.parent, how))
    assert error.startswith(f"{path} {said}")
    assert hint
    assert path.read_bytes() == before


@pytest.mark.usefixtures("nobody_named")
def test_a_folder_of_somebody_else_is_named_with_whose_it_is(tmp_path: Path) -> None:
    # The rights go after all is loaded: nobody cannot see what root's folders hold.
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from pierhead.protocol.errors import Unavailable\n"
        "from pierhead.router.usable import require_folders\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "try: require_folders(Path(sys.argv[1]), Path(sys.argv[1]))\n"
        "except Unavailable as error: print(error, error.problem.hint, sep='|')\n"
    )
    shown = Path("/var/tmp") / f"pierhead-{os.getpid()}"
    shown.mkdir(mode=0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, shown / "data"],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        shutil.rmtree(shown)
    error, hint = done.stdout.strip().split("|")
    assert error == f"{shown} belongs to root, and you may not write there"
    assert hint == "be root, or keep the data elsewhere: PIERHEAD_DATA=DIR"


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 1), (["builds", "--help"], 1), (["doctor", "--help"], 1)]
)
def test_an_output_that_takes_no_more_is_told_once(words: list[str], code: int) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [PIERHEAD, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == code
    assert done.stderr.startswith("error: No space left on device\n\nhint: ")
    assert "Exception ignored" not in done.stderr


def test_when_nobody_can_be_told_the_code_tells() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([PIERHEAD, "nothing"], stderr=full, check=False)

    assert done.returncode != 0


@pytest.mark.parametrize("words", [["--help"], ["builds", "--help"], ["builds"]])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_stream_that_was_closed_leads_nowhere(
    tmp_path: Path, words: list[str], closed: str
) -> None:
    nowhere = {"PIERHEAD_URL": "http://127.0.0.1:1", "PIERHEAD_CONFIG": str(tmp_path)}
    line = " ".join([str(PIERHEAD), *words, closed])
    done = subprocess.run(
        ["bash", "-c", line], env={**os.environ, **nowhere}, capture_output=True, check=False
    )

    assert done.returncode == (3 if words == ["builds"] else 0)
    assert b"Traceback" not in done.stderr
