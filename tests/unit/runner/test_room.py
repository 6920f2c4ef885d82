"""The root that a build sees: what of the machine is shown in it may go at any moment."""

import os
from pathlib import Path

import pytest

from pierhead.runner.adapters import room


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_setting_that_goes_while_it_is_shown_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source, target = tmp_path / "setting", tmp_path / "room" / "setting"
    target.parent.mkdir()
    source.touch() if kind == "file" else source.mkdir()

    def gone(shown: str, *_: object) -> None:
        os.unlink(shown) if kind == "file" else os.rmdir(shown)
        raise FileNotFoundError(shown)

    monkeypatch.setattr(room, "mount", gone)

    room.enter("setting", str(source), str(target))

    assert list(target.parent.iterdir()) == []


def test_whatever_else_is_missing_ends_the_build(tmp_path: Path) -> None:
    target = tmp_path / "room" / "work"

    with pytest.raises(OSError, match="mount"):
        room.enter("ro", str(tmp_path / "nothing"), str(target))
