"""The golden documents: whatever was once on the wire is read for ever, and means the same."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pierhead.protocol.codec import from_wire, to_wire
from tests.unit.house.tree import ROOT
from tools.golden import FOLDER, documents_of, missing, uncovered
from tools.json_schema import models

MODELS = {model.__name__: model for model in models()}
DOCUMENTS = sorted(FOLDER.glob("*.json"))


def model_of(file: Path) -> type[msgspec.Struct]:
    return MODELS[file.name.partition(".")[0]]


def says_all(new: Any, old: Any) -> bool:
    """Whether all that is in the old document is in the new one, with the same meaning."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(
            key in new and says_all(new[key], value) for key, value in old.items()
        )
    if isinstance(old, list):
        return len(new) == len(old) and all(map(says_all, new, old))
    return bool(new == old)


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.stem)
def test_a_golden_document_is_read_and_nothing_of_it_is_lost(file: Path) -> None:
    content = file.read_bytes()

    parsed = from_wire(model_of(file), content)

    assert says_all(json.loads(to_wire(parsed)), json.loads(content))
    assert from_wire(model_of(file), to_wire(parsed)) == parsed


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.stem)
def test_fields_of_tomorrow_are_ignored(file: Path) -> None:
    newer = {**json.loads(file.read_bytes()), "of_tomorrow": {"deep": [1, 2, 3]}}

    model = model_of(file)

    assert from_wire(model, json.dumps(newer).encode()) == from_wire(model, file.read_bytes())


def test_every_field_of_every_model_is_in_a_golden_document() -> None:
    assert list(missing()) == []


def test_a_field_without_a_golden_document_is_noticed(tmp_path: Path) -> None:
    class Parcel(msgspec.Struct):
        weight: int = 0

    assert documents_of("Parcel") == []
    assert uncovered(Parcel) == {"weight"}


def test_no_golden_document_was_ever_changed_or_removed() -> None:
    place = str(FOLDER.relative_to(ROOT))
    history = subprocess.run(
        ["git", "log", "--diff-filter=MDR", "--format=%h %s", "--", place],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert history.stdout == ""


@pytest.mark.parametrize(
    ("new", "old", "same"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": "1"}, {"a": 1}, False),
    ],
)
def test_a_document_that_lost_something_is_told_apart(new: Any, old: Any, same: bool) -> None:
    assert says_all(new, old) is same
