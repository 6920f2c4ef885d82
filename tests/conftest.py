"""What all tests share: asynchronous tests run on asyncio."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
