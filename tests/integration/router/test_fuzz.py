"""schemathesis on the OpenAPI document: whatever fits it, or nearly does, is no error of ours.

Each operation is asked with the owner's token, which gets furthest into the use cases.
"""

import asyncio
import json
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance

from tests.integration.router.stage import House
from tools.api_docs import TARGET

EXAMPLES = 12
USUAL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@schemathesis.serializer("application/x-tar", "application/vnd.pierhead.objects")
def as_it_is(_context: object, value: object) -> bytes:
    """Send bytes where the document says no more of a body than its media type."""
    return value if isinstance(value, bytes) else str(value).encode()


def ask_everything(url: str, token: str) -> int:
    """Ask every operation some times; return how many requests there were."""
    schema = schemathesis.openapi.from_url(f"{url}/api/openapi.json")
    headers = {"Authorization": f"Bearer {token}"}
    asked = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()

        @hypothesis.seed(1)
        @USUAL
        @given(case=operation.as_strategy())
        def ask(case: "schemathesis.Case[Any]") -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(
                headers=headers, checks=[not_a_server_error, content_type_conformance], timeout=90
            )

        ask()
    return asked


@pytest.mark.timeout(300)
async def test_no_request_is_an_error_of_ours(house: House) -> None:
    asked = await asyncio.to_thread(ask_everything, house.url, house.owner_token)

    assert asked > 300


async def test_the_document_that_is_served_is_the_one_that_is_in_the_repository(
    house: House,
) -> None:
    served = (await house.http(None).get("/api/openapi.json")).json()

    assert served == json.loads(TARGET.read_text())
