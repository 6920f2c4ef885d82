"""What a value has to be, in words for people, from the types that the decoder checks.

The decoder says what it expected in its own terms: patterns, and names of Python's types. People
are told the place, what belongs there, and an example. A value is never repeated: it may be secret.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

_REFERENCE: Final = "#/$defs/"
_MISSING: Final = re.compile(r"missing required field `(?P<field>[^`]*)`")
_PLACE: Final = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`\Z")
_NAME: Final = re.compile(r"\.(?P<field>\w+)|\[(?P<index>[^\]]*)\]")
_KINDS: Final = {"boolean": "true or false", "object": "an object", "number": "a number"}


class Shape(NamedTuple):
    """What a value has to be; `example`: one that is right, or empty."""

    words: str
    example: str = ""


class Complaint(NamedTuple):
    """What is wrong with a document; no hint: nothing better than the usual one is known."""

    text: str
    hint: str | None = None


def shape_of(kind: object) -> Shape:
    """Return what a value of a type has to be."""
    (schema,), defined = msgspec.json.schema_components([kind], ref_template=_REFERENCE + "{name}")
    return _shape(schema, defined)


def complaint(kind: object, error: str) -> Complaint:
    """Return in words what the decoder found wrong with a document of a type."""
    (schema,), defined = msgspec.json.schema_components([kind], ref_template=_REFERENCE + "{name}")
    found = _PLACE.search(error)
    path = found["path"] if found else ""
    missing = _MISSING.search(error)
    if missing is not None:
        path = f"{path}.{missing['field']}"
    elif found is None and not error.startswith("Expected"):
        return Complaint("the document is not JSON, or only the beginning of it")
    there = _at(schema, defined, path)
    is_name = bool(found and found["key"])
    names = {"type": "string", **there.get("propertyNames", {})}
    shape = _shape(names if is_name else there, defined)
    hint = f"for example {shape.example}" if shape.example else None
    place = path.removeprefix(".").replace("[...]", "[]") or "the document"
    place = f"a name in {place}" if is_name else place
    if missing is not None:
        return Complaint(f"{place} is missing: it has to be {shape.words}", hint)
    return Complaint(f"{place} has to be {shape.words}", hint)


def _at(schema: dict[str, Any], defined: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the schema of a place: `.plan.ulimits[0]`."""
    for part in _NAME.finditer(path):
        below: dict[str, Any] = {}
        for one in _alternatives(schema, defined):
            if part["field"] is not None:
                below = below or one.get("properties", {}).get(part["field"], {})
            else:
                items = one.get("items") or one.get("additionalProperties")
                below = below or (items if isinstance(items, dict) else {})
        schema = below
    return schema


def _alternatives(schema: dict[str, Any], defined: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a schema allows, apart from nothing at all."""
    if "$ref" in schema:
        schema = defined[schema["$ref"].removeprefix(_REFERENCE)]
    found = [one for each in schema.get("anyOf", []) for one in _alternatives(each, defined)]
    return [one for one in found or [schema] if one.get("type") != "null"]


def _shape(schema: dict[str, Any], defined: dict[str, Any]) -> Shape:
    several = _alternatives(schema, defined)
    example = next((str(each) for one in several for each in one.get("examples", [])), "")
    return Shape(" or ".join(dict.fromkeys(map(_words, several))) or "left out", example)


def _words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    match schema.get("type"):
        case "string" if schema.get("contentEncoding") == "base64":
            return "base64"
        case "string":
            limits = _limits(schema.get("minLength"), schema.get("maxLength"), "characters")
            words: str = schema.get("description", "a text")
            return f"{words}, {limits}" if limits else words
        case "integer":
            limits = _limits(schema.get("minimum"), schema.get("maximum"))
            return f"a whole number {limits}".rstrip()
        case "array":
            limits = _limits(schema.get("minItems"), schema.get("maxItems"), "entries")
            return f"a list, {limits}" if limits else "a list"
        case kind:
            return _KINDS.get(str(kind), "something else")


def _limits(least: int | None, most: int | None, what: str = "") -> str:
    unit = f" {what}" if what else ""
    if least and most is not None:
        return f"from {least} to {most}{unit}" if least != most else f"{least}{unit}"
    if most is not None:
        return f"at most {most}{unit}" if what else f"from {least or 0} to {most}"
    return f"at least {least}{unit}" if least else ""
