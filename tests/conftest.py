"""What all tests share: asynchronous tests run on asyncio, and properties on the same examples."""

import os

import pytest
from hypothesis import settings

# A check that fails by chance is not trusted; `PIERHEAD_EXPLORE=1` draws new examples each time.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("explore" if os.environ.get("PIERHEAD_EXPLORE") else "fixed")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
