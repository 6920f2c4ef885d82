"""The OpenAPI 3.1 document of a table of endpoints (https://spec.openapis.org/oas/v3.1.0)."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE, Problem
from pierhead.protocol.version import FENCE_HEADER, PROTOCOL, PROTOCOL_HEADER
from pierhead.server.endpoint import Bytes, Endpoint, Parameter, Stream

Json = dict[str, Any]
REFERENCE: Final = "#/components/schemas/{name}"
JSON: Final = "application/json"
_PATH_PARAMETER: Final = re.compile(r"\{(?P<name>[a-z_]+)(?::[a-z]+)?\}")
_SECURITY: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the owner, a project, a runner or a build.",
    }
}
_FENCE: Final = Parameter(
    name=FENCE_HEADER,
    summary="Which attempt speaks. An attempt that was overtaken is refused with lease-lost.",
    place="header",
    kind="integer",
    required=True,
)


def portable(value: Any) -> Any:
    r"""Return a schema with the patterns of JSON Schema: there, `$` is what Python calls `\Z`."""
    if isinstance(value, dict):
        return {
            key: inner.replace(r"\Z", "$") if key == "pattern" else portable(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    return value


def openapi(endpoints: Sequence[Endpoint], *, title: str, release: str) -> Json:
    """Return the document. The same endpoints give the same document, byte for byte."""
    documents = _documents(endpoints)
    schemas, components = msgspec.json.schema_components(documents, ref_template=REFERENCE)
    names = _names(endpoints)
    schema_of = {id(kind): schema for kind, schema in zip(documents, schemas, strict=True)}
    paths: dict[str, Json] = {}
    for endpoint, name in zip(endpoints, names, strict=True):
        operations = paths.setdefault(_PATH_PARAMETER.sub(r"{\g<name>}", endpoint.path), {})
        operations[endpoint.method.lower()] = _operation(endpoint, name, schema_of)
    document = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": f"{PROTOCOL}", "x-release": release},
        "paths": {path: paths[path] for path in sorted(paths)},
        "components": {
            "schemas": {name: components[name] for name in sorted(components)},
            "securitySchemes": _SECURITY,
        },
    }
    return dict(portable(document))


def _documents(endpoints: Sequence[Endpoint]) -> list[Any]:
    """Return every model that goes in or out, each once."""
    found: dict[int, Any] = {id(Problem): Problem}
    for endpoint in endpoints:
        for kind in (endpoint.body, endpoint.answer):
            document = kind.document if isinstance(kind, Stream) else kind
            if document is not None and not isinstance(document, Bytes):
                found[id(document)] = document
    return list(found.values())


def _operation(endpoint: Endpoint, name: str, schema_of: dict[int, Json]) -> Json:
    operation: Json = {
        "operationId": name,
        "summary": endpoint.summary,
        "x-pierhead-who": endpoint.who,
        "security": [] if endpoint.who == "anybody" else [{"bearer": []}],
        "parameters": [_header(), *map(_parameter, _read(endpoint))],
        "responses": {
            "200": {"description": "Done.", **_content(endpoint.answer, schema_of)},
            "default": {
                "description": "A problem document says why not, and what to do next.",
                "content": {PROBLEM_MEDIA_TYPE: {"schema": schema_of[id(Problem)]}},
            },
        },
    }
    operation["parameters"] += [
        {"name": found["name"], "in": "path", "required": True, "schema": {"type": "string"}}
        for found in _PATH_PARAMETER.finditer(endpoint.path)
    ]
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, **_content(endpoint.body, schema_of)}
    return operation


def _names(endpoints: Sequence[Endpoint]) -> list[str]:
    """Return what a generated client calls each: `build_submit` for `BuildHandlers.submit`.

    A handler that serves a second method has another name there: `run_run_put`.
    """
    names: list[str] = []
    for endpoint in endpoints:
        owner, _, method = endpoint.handler.__qualname__.rpartition(".")
        name = f"{owner.removesuffix('Handlers').lower()}_{method}"
        names.append(f"{name}_{endpoint.method.lower()}" if name in names else name)
    return names


def _read(endpoint: Endpoint) -> tuple[Parameter, ...]:
    """Return the parameters that the endpoint reads, with those that come with its `who`."""
    return (*([_FENCE] if endpoint.who == "attempt" else []), *endpoint.parameters)


def _content(kind: Any, schema_of: dict[int, Json]) -> Json:
    match kind:
        case None:
            return {}
        case Bytes(media_type=media_type, limit=limit):
            bounded = {} if limit is None else {"maxLength": limit}
            return {"content": {media_type: {"schema": {"type": "string", **bounded}}}}
        case Stream(document=document, media_type=media_type):
            return {"content": {media_type: {"schema": schema_of[id(document)]}}}
        case _:
            return {"content": {JSON: {"schema": schema_of[id(kind)]}}}


def _header() -> Json:
    """Return the header that every request may carry."""
    return {
        "name": PROTOCOL_HEADER,
        "in": "header",
        "required": False,
        "description": "The version of the protocol that the client speaks.",
        "schema": {"type": "integer", "const": PROTOCOL},
    }


def _parameter(found: Parameter) -> Json:
    return {
        "name": found.name,
        "in": found.place,
        "required": found.required,
        "description": found.summary,
        "schema": {"type": found.kind},
    }
