"""Write golden documents of the wire protocol: `python -m tools.golden`.

A golden document is written once and never edited: every later release has to read it. So this
only ever adds: documents for models that have none, and another one for a model with fields that no
document of it has yet. `--check` writes nothing and ends with 1 when something is missing.

Each document has every field set, so that a field that is renamed or removed is noticed.
"""

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import inspect

from pierhead.protocol.version import PROTOCOL
from tools.json_schema import models

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "tests" / "wire" / f"v{PROTOCOL}"
# Texts that no general sample fits, by a part of their pattern.
BY_PATTERN: Final = (
    ("sha256:", "sha256:" + "0123456789abcdef" * 4),
    ("[0-9a-f]{64}", "0123456789abcdef" * 4),
    ("core|cpu", "nofile=1024:4096"),
    ("linux|", "linux/arm64/v8"),
    ("[a-z0-9]+/[a-z0-9]+", "linux/arm64"),
    ("a-zA-Z0-9_", "v1.2"),
)
SAMPLES: Final = ("acme-web", "web", "db:10.0.0.1", "linux/amd64", "nofile=1024:4096", "v1")


def sample(kind: inspect.Type) -> Any:
    """Return a value of a type, as JSON has it, with everything in it set."""
    match kind:
        case inspect.Metadata(type=inner):
            return sample(inner)
        case inspect.StructType():
            return document(kind)
        case inspect.UnionType(types=types):
            return sample(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.LiteralType(values=values):
            return values[-1]
        case inspect.StrType():
            return text(kind)
        case inspect.IntType(ge=low, le=high):
            return min(max(low or 0, 7), high if high is not None else 7)
        case inspect.FloatType():
            return 1.5
        case inspect.BoolType():
            return True
        case inspect.BytesType(min_length=least):
            return base64.b64encode(b"\x07" * (least or 8)).decode()
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return [sample(item)]
        case inspect.DictType(key_type=key, value_type=value):
            return {sample(key): sample(value)}
        case _:
            raise TypeError(f"no sample for {kind}")


def text(kind: inspect.StrType) -> str:
    """Return a text that the type takes."""
    taken = msgspec.Meta(
        pattern=kind.pattern, min_length=kind.min_length, max_length=kind.max_length
    )
    fitting = [one for part, one in BY_PATTERN if kind.pattern and part in kind.pattern]
    longer = "a text of a document that will be read for ever"
    for candidate in (*fitting, *([] if kind.pattern else [longer]), *SAMPLES):
        try:
            return str(msgspec.convert(candidate, Annotated[str, taken]))
        except msgspec.ValidationError:
            continue
    raise TypeError(f"no sample for the pattern {kind.pattern}")


def document(kind: inspect.StructType) -> dict[str, Any]:
    """Return a document with every field of a model."""
    tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
    return {**tag, **{field.encode_name: sample(field.type) for field in kind.fields}}


def struct_of(model: type[msgspec.Struct]) -> inspect.StructType:
    """Return what msgspec knows of a model."""
    known = inspect.type_info(model)
    assert isinstance(known, inspect.StructType)
    return known


def documents_of(name: str) -> list[Path]:
    """Return the golden documents of a model."""
    return sorted(FOLDER.glob(f"{name}.*.json"))


def uncovered(model: type[msgspec.Struct]) -> set[str]:
    """Return the fields of a model that none of its documents has."""
    wanted = {field.encode_name for field in struct_of(model).fields}
    for file in documents_of(model.__name__):
        wanted -= set(json.loads(file.read_bytes()))
    return wanted


def missing() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the documents that are still to be written."""
    for model in models():
        known = documents_of(model.__name__)
        if uncovered(model) or not known:
            yield FOLDER / f"{model.__name__}.{len(known) + 1}.json", document(struct_of(model))


def main() -> int:
    """Write what is missing, or only say it."""
    found = list(missing())
    if "--check" in sys.argv[1:]:
        for file, _ in found:
            print(f"missing: {file.relative_to(ROOT)} (python -m tools.golden)", file=sys.stderr)
        return 1 if found else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, content in found:
        file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
