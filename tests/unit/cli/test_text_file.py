"""A file that is named for a token or a certificate: read once, and never without end."""

import os
import threading
from pathlib import Path

import pytest

from pierhead.protocol.cli.given import TEXT_FILE_BYTES_MAX, text_file
from pierhead.protocol.cli.speak import CommandFailed


def test_what_a_file_says_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("x" * TEXT_FILE_BYTES_MAX)

    assert text_file("--token-file")(file) == file.read_text()


def test_what_comes_through_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    says = threading.Thread(target=(tmp_path / "pipe").write_text, args=["from a shell's <()"])
    says.start()

    assert text_file("--token-file")(str(tmp_path / "pipe")) == "from a shell's <()"
    says.join()


@pytest.mark.parametrize("kind", ["missing", "folder", "endless", "bytes"])
def test_what_is_no_small_text_is_refused_by_the_name_of_the_option(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "endless").symlink_to("/dev/zero")

    with pytest.raises(CommandFailed) as failed:
        text_file("--ca-file")(str(tmp_path / kind))

    assert failed.value.code == 2
    said = capsys.readouterr().err
    assert "--ca-file has to be a text file of at most 1 MB" in said
    assert "hint: --ca-file FILE" in said
