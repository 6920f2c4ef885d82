"""What all tests share: asynchronous tests run on asyncio, and properties on the same examples.

`--part=1/2` runs the tests of every second file, `--part=2/2` those of the others.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.usual_port import usual_port

# A check that fails by chance is not trusted; `PIERHEAD_EXPLORE=1` draws new examples each time.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("explore" if os.environ.get("PIERHEAD_EXPLORE") else "fixed")

QUEUED_SECONDS = 1200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="so many-th of so many parts of the files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        # Its time begins with the fixture, and others may have the port for minutes.
        if "nobody_named" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(QUEUED_SECONDS))
    number, parts = map(int, config.getoption("--part").split("/"))
    files = list(dict.fromkeys(item.path for item in items))
    mine = {*files[number - 1 :: parts]}
    others = [item for item in items if item.path not in mine]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.path in mine]


@pytest.fixture
def nobody_named() -> Iterator[None]:
    """For tests of commands that look at the usual port, since no control plane was named."""
    with usual_port():
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
