"""The OpenAPI document: valid, complete, and the same each time."""

from typing import Any

import pytest
from msgspec import Struct
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.requests import Request
from starlette.responses import Response

from pierhead.protocol.build import Event
from pierhead.protocol.problem import PROBLEM_MEDIA_TYPE
from pierhead.protocol.version import FENCE_HEADER
from pierhead.server.endpoint import Bytes, Endpoint, Parameter, Stream
from pierhead.server.openapi import openapi
from tools.api_docs import endpoints


class Parcel(Struct):
    weight: int = 0


class ParcelHandlers:
    async def send(self, _request: Request) -> Response:
        return Response()


def described(**changes: Any) -> Any:
    usual: dict[str, Any] = {
        "method": "POST",
        "path": "/parcels/{name:path}",
        "handler": ParcelHandlers.send,
        "who": "owner",
        "summary": "Send a parcel",
        "answer": Parcel,
    }
    found = openapi([Endpoint(**{**usual, **changes})], title="post", release="1")
    return found["paths"]["/parcels/{name}"]["post"], found


def names(operation: Any, place: str) -> list[str]:
    return [found["name"] for found in operation["parameters"] if found["in"] == place]


def test_the_real_table_is_valid_openapi() -> None:
    document = openapi(endpoints(), title="router", release="1")

    OpenAPIV31SpecValidator(document).validate()
    assert len(document["paths"]) >= 20


def test_no_two_operations_have_one_name() -> None:
    document = openapi(endpoints(), title="router", release="1")
    found = [op["operationId"] for path in document["paths"].values() for op in path.values()]

    assert len(found) == len(set(found)) == len(endpoints())


def test_an_attempt_has_to_say_its_fence_and_nobody_else() -> None:
    attempt, _ = described(who="attempt")
    owner, _ = described(who="owner")

    assert FENCE_HEADER in names(attempt, "header")
    assert FENCE_HEADER not in names(owner, "header")


def test_what_anybody_may_call_needs_no_token() -> None:
    anybody, _ = described(who="anybody")
    owner, _ = described()

    assert anybody["security"] == []
    assert owner["security"] == [{"bearer": []}]


def test_paths_parameters_and_bodies_are_described() -> None:
    wanted = Parameter(name="fast", summary="Whether it hurries.", kind="boolean")
    operation, document = described(body=Bytes(limit=9), parameters=(wanted,))

    assert names(operation, "path") == ["name"]
    assert names(operation, "query") == ["fast"]
    schema = operation["requestBody"]["content"]["application/octet-stream"]["schema"]
    assert schema == {"type": "string", "maxLength": 9}
    assert "Parcel" in document["components"]["schemas"]


def test_every_refusal_is_a_problem_document() -> None:
    operation, _ = described()

    assert list(operation["responses"]["default"]["content"]) == [PROBLEM_MEDIA_TYPE]


@pytest.mark.parametrize("media_type", ["text/event-stream", "application/jsonl"])
def test_a_stream_names_the_document_that_it_is_made_of(media_type: str) -> None:
    operation, document = described(answer=Stream(document=Event, media_type=media_type))

    assert media_type in operation["responses"]["200"]["content"]
    assert {"Queued", "Finished"} <= set(document["components"]["schemas"])
