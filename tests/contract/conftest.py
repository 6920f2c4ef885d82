"""What the suites share with the tests of the real things, and with each other."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.backend.conftest import isolates as isolates
from tests.integration.router.stage import House, open_house


@pytest.fixture(scope="session")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """One router for all tests, each with a runner of its own."""
    async with open_house(tmp_path_factory.mktemp("house")) as opened:
        yield opened
