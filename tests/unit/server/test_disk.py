"""A folder is told apart that can be used from one that cannot, and why, before anything starts."""

import errno
import os
from pathlib import Path

import pytest

from pierhead.protocol.errors import Unavailable
from pierhead.protocol.problem import Problem
from pierhead.server.disk import require_usable


def refusal(folder: Path) -> Problem:
    with pytest.raises(Unavailable) as refused:
        require_usable(folder, elsewhere="PLACE=DIR")
    return refused.value.problem


def test_a_folder_is_made_with_those_above_it_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    require_usable(folder, elsewhere="PLACE=DIR")
    assert list(folder.iterdir()) == []
    require_usable(folder, elsewhere="PLACE=DIR")


@pytest.mark.parametrize(
    ("below", "said"),
    [("", "is a file, and no folder"), ("a", "is a file, and a folder has to be")],
)
def test_a_file_in_its_place_is_named(tmp_path: Path, below: str, said: str) -> None:
    (tmp_path / "file").touch()
    found = refusal(tmp_path / "file" / below)
    assert found.detail.startswith(f"{tmp_path / 'file'} {said}")
    assert found.hint == "keep the data elsewhere: PLACE=DIR"


@pytest.mark.parametrize(
    ("number", "slug", "said", "hint"),
    [
        (errno.ENOSPC, "storage-full", "is full: ", "free some space there, or keep"),
        (errno.EDQUOT, "storage-full", "is full: ", "free some space there, or keep"),
        (
            errno.EROFS,
            "dependency-unavailable",
            "for reading only",
            "mount it for writing, or keep",
        ),
        (errno.EACCES, "dependency-unavailable", "you may not write there", "be "),
        (
            errno.EIO,
            "dependency-unavailable",
            "cannot be used: Input/output error",
            "keep the data",
        ),
    ],
)
def test_what_the_disk_says_is_said_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    slug: str,
    said: str,
    hint: str,
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fails)
    found = refusal(tmp_path)
    assert found.slug == slug
    assert said in found.detail
    assert str(tmp_path) in found.detail
    assert (found.hint or "").startswith(hint)
    assert (found.hint or "").endswith("elsewhere: PLACE=DIR")
    assert list(tmp_path.iterdir()) == []
