"""A router, and other registries beside it."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pierhead.protocol.registry import NewRegistry, RegistryAdded
from tests.integration.mirror.others import (
    PASSWORD,
    USER,
    Strange,
    docker_registry,
    push,
    strange_registry,
)
from tests.integration.router.stage import House, TinyImage, open_house, tiny_image


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path / "house") as opened:
        yield opened


@pytest.fixture
async def strange() -> AsyncIterator[Strange]:
    async with strange_registry() as running:
        running.images["me/base"] = tiny_image("base")
        yield running


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[tuple[str, TinyImage]]:
    """Debian's docker-registry behind a password, with one image: its host, and that."""
    async with docker_registry(tmp_path / "real") as host:
        image = tiny_image("real")
        await push(host, "me/base", image, "1")
        yield host, image


async def login(house: House, host: str, **changed: object) -> RegistryAdded:
    """Add a login that works, over plain HTTP."""
    terms = {"host": host, "username": USER, "secret": PASSWORD, "plain_http": True, **changed}
    return await house.owner.add_registry(NewRegistry(**terms))  # type: ignore[arg-type]


async def attempt(house: House, project: str = "web", name: str = "desktop") -> httpx.AsyncClient:
    """Return a client with the token of a build that runs."""
    runner = await house.runner(name)
    _, grant = await house.leased(runner, project=project)
    return house.http(grant.token)


def manifest(name: str, reference: str, host: str) -> str:
    return f"/v2/{name}/manifests/{reference}?ns={host}"


def blob(name: str, digest: str, host: str) -> str:
    return f"/v2/{name}/blobs/{digest}?ns={host}"
