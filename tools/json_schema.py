"""Write the JSON Schema of all documents on the wire, and of what commands print with `--json`.

`--check` writes nothing and ends with 1 when the file is not what the models say. The schema is
made from the models, so it cannot promise anything that the code does not check.
"""

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Final, TypeGuard

import msgspec

import pierhead.protocol
from pierhead.protocol.answers import DOCUMENTS, STREAMS
from pierhead.protocol.problem import Problem
from pierhead.protocol.version import PROTOCOL
from pierhead.server.openapi import portable

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "reference" / "schema"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def is_model(value: object) -> TypeGuard[type[msgspec.Struct]]:
    """Say whether a value is the class of a document."""
    return isinstance(value, type) and issubclass(value, msgspec.Struct)


def models() -> list[type[msgspec.Struct]]:
    """Return every model of the protocol, by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module in pkgutil.iter_modules(pierhead.protocol.__path__, "pierhead.protocol."):
        if module.ispkg:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if is_model(value) and value.__module__ == module.name:
                found[value.__name__] = value
    return [found[name] for name in sorted(found)]


def schema() -> str:
    """Return the whole document."""
    _, components = msgspec.json.schema_components(models(), ref_template="#/$defs/{name}")
    document = {
        "$schema": DIALECT,
        "title": f"pierhead wire protocol {PROTOCOL}",
        "$defs": {name: portable(components[name]) for name in sorted(components)},
    }
    return json.dumps(document, indent=2, sort_keys=False) + "\n"


def commands() -> str:
    """Return what each command prints; of a stream, what a line is."""
    kinds = {**DOCUMENTS, **STREAMS}
    schemas, components = msgspec.json.schema_components(
        [*kinds.values(), Problem], ref_template="#/$defs/{name}"
    )
    shown = dict(zip(kinds, schemas, strict=False))
    document = {
        "$schema": DIALECT,
        "title": "What pierhead prints with --json",
        "description": "Of a command that is refused, the answer or the last line is a Problem.",
        "documents": {name: portable(shown[name]) for name in sorted(DOCUMENTS)},
        "streams": {name: portable(shown[name]) for name in sorted(STREAMS)},
        "$defs": {name: portable(components[name]) for name in sorted(components)},
    }
    return json.dumps(document, indent=2, sort_keys=False) + "\n"


def main() -> int:
    """Write the files, or compare them."""
    stale = []
    for name, text in ((f"v{PROTOCOL}.json", schema()), ("commands.json", commands())):
        target = FOLDER / name
        if "--check" not in sys.argv[1:]:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        elif not target.is_file() or target.read_text() != text:
            stale.append(f"{target.relative_to(ROOT)} is stale: make docs")
    print("\n".join(stale), end="\n" if stale else "", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
