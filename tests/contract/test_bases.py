"""What every place for base images does: the control plane's mirror, and the fake."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.runner.ports import BaseAnswer, BaseAsk, Bases
from pierhead.runner.testing import FakeBases
from tests.contract.test_control import RealTown, opened, request
from tests.integration.mirror.conftest import login
from tests.integration.mirror.others import Strange, strange_registry
from tests.integration.router.stage import MANIFEST_TYPE, open_house, tiny_image

NAME = "me/base"
IMAGE = tiny_image("x" * 600_000)
NOTHING = digest_of(b"nothing")


class Store(ABC):
    """One registry with one image, as a build sees it."""

    bases: Bases
    host: str

    @abstractmethod
    def fall_silent(self) -> None:
        """Let the registry itself answer no more."""

    def wanted(
        self,
        method: Literal["GET", "HEAD"],
        kind: Literal["manifests", "blobs"],
        reference: str,
        name: str = NAME,
    ) -> BaseAsk:
        return BaseAsk(method=method, host=self.host, name=name, kind=kind, reference=reference)

    async def ask(self, wanted: BaseAsk) -> tuple[BaseAnswer, bytes]:
        """Return the answer to a request, and all of its bytes."""
        async with self.bases.ask(wanted) as answer:
            return answer, b"".join([chunk async for chunk in answer.chunks])


class RealStore(Store):
    def __init__(self, bases: Bases, registry: Strange) -> None:
        self.bases, self.host, self._registry = bases, registry.host, registry

    def fall_silent(self) -> None:
        self._registry.silent = True


class FakeStore(Store):
    def __init__(self) -> None:
        self.host = "r.example:5000"
        parts = (IMAGE.config, IMAGE.layer)
        names = {IMAGE.digest: IMAGE.manifest, "latest": IMAGE.manifest}
        self.bases: FakeBases = FakeBases(
            manifests={(self.host, NAME, said): body for said, body in names.items()},
            blobs={(self.host, NAME, digest_of(part)): part for part in parts},
        )

    def fall_silent(self) -> None:
        self.bases.stale_since = "Monday"


@pytest.fixture(params=["fake", "mirror"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "fake":
        yield FakeStore()
        return
    # A house of its own: another's would remember an earlier registry of the same port.
    async with open_house(tmp_path) as house, strange_registry() as registry:
        registry.images[NAME] = IMAGE
        await login(house, registry.host, username=None, secret=None)
        town = RealTown(house, await house.credential("desktop"))
        yield RealStore(await bases_of_a_build(town), registry)
        await town.close()


async def bases_of_a_build(town: RealTown) -> Bases:
    await town.submit()
    [found] = (await town.control.acquire(request(await opened(town)))).grants
    bases = town.attempt(found).bases()
    assert bases is not None
    return bases


@pytest.mark.parametrize("reference", ["latest", IMAGE.digest])
async def test_a_manifest_comes_with_its_kind_its_digest_and_its_size(
    store: Store, reference: str
) -> None:
    asked = store.wanted("GET", "manifests", reference)
    for wanted, body in ((asked, IMAGE.manifest), (replace(asked, method="HEAD"), b"")):
        answer, found = await store.ask(wanted)

        assert (answer.status, found, answer.refusal) == (200, body, None)
        assert answer.headers["content-type"] == MANIFEST_TYPE
        assert answer.headers["docker-content-digest"] == IMAGE.digest
        assert answer.headers["content-length"] == str(len(IMAGE.manifest))
        assert answer.stale_since is None


@pytest.mark.parametrize("part", [IMAGE.config, IMAGE.layer], ids=["config", "layer"])
async def test_a_blob_comes_whole_also_to_two_at_a_time(store: Store, part: bytes) -> None:
    wanted = store.wanted("GET", "blobs", digest_of(part))

    for answer, found in await asyncio.gather(store.ask(wanted), store.ask(wanted)):
        assert (answer.status, found, answer.refusal) == (200, part, None)
        assert answer.headers["content-length"] == str(len(part))
    answer, found = await store.ask(replace(wanted, method="HEAD"))
    assert (answer.status, found) == (200, b"")
    assert answer.headers["content-length"] == str(len(part))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_is_not_there_is_said_and_of_which_image(
    store: Store, method: Literal["GET", "HEAD"]
) -> None:
    for wanted in (
        store.wanted(method, "manifests", "no-such-tag"),
        store.wanted(method, "blobs", NOTHING),
        store.wanted(method, "manifests", "latest", "me/other"),
    ):
        answer, found = await store.ask(wanted)

        assert (answer.status, found) == (404, b"")
        assert answer.refusal is not None
        assert answer.refusal.image == f"{store.host}/{wanted.name}"
        assert answer.refusal.message


async def test_an_answer_that_is_not_read_keeps_nobody_waiting(store: Store) -> None:
    wanted = store.wanted("GET", "blobs", digest_of(IMAGE.layer))
    async with store.bases.ask(wanted):
        pass

    assert (await store.ask(wanted))[1] == IMAGE.layer


async def test_what_was_had_before_is_given_while_the_registry_is_silent_and_that_is_said(
    store: Store,
) -> None:
    by_tag = store.wanted("GET", "manifests", "latest")
    await store.ask(by_tag)

    store.fall_silent()
    answer, found = await store.ask(by_tag)

    assert (answer.status, found) == (200, IMAGE.manifest)
    assert answer.stale_since
