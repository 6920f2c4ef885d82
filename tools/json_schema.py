"""Write the JSON Schema of all documents on the wire to docs/reference/schema/v1.json.

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
from pierhead.protocol.version import PROTOCOL
from pierhead.server.openapi import portable

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "reference" / "schema" / f"v{PROTOCOL}.json"
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


def main() -> int:
    """Write the file, or compare it."""
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text() == schema():
            return 0
        print(f"{TARGET.relative_to(ROOT)} is stale: make docs", file=sys.stderr)
        return 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(schema())
    return 0


if __name__ == "__main__":
    sys.exit(main())
