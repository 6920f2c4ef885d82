"""What everybody who asks other registries keeps, asked at a real one and at the tests' own.

The tests of the mirror have a registry that can misbehave: until it is told to, it has to be like
Debian's docker-registry, in all that is seen of it through the port.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from pierhead.protocol.digest import digest_of
from pierhead.router.adapters.upstream import HttpUpstreams
from pierhead.router.domain.errors import (
    HostNotAllowed,
    Refused,
    UpstreamLies,
    UpstreamMissing,
    UpstreamRefused,
    UpstreamSilent,
)
from pierhead.router.domain.upstream import Bound, Image
from pierhead.router.ports.upstreams import Upstream, Upstreams
from tests.integration.mirror.others import (
    PASSWORD,
    USER,
    docker_registry,
    push,
    strange_registry,
)
from tests.integration.router.stage import MANIFEST_TYPE, tiny_image
from tests.ports import free_port

NAME = "me/base"
IMAGE = tiny_image("base")
NOTHING = digest_of(b"nothing")
ROOM = Bound(size_bytes=10**6, why="that there are")


@dataclass
class Abroad:
    """A registry that wants a login and has one image, whose tag is `latest`."""

    upstreams: Upstreams
    host: str

    def known(self) -> Upstream:
        """Return the registry, asked with the right login."""
        return Upstream(
            host=self.host,
            scope="l_1",
            username=USER,
            secret=PASSWORD,
            plain_http=True,
            allowed=frozenset({self.host}),
        )

    def one(self, reference: str = "latest", name: str = NAME) -> Image:
        return Image(host=self.host, name=name, reference=reference)


@pytest.fixture(scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with docker_registry(tmp_path_factory.mktemp("others") / "real") as host:
        await push(host, NAME, IMAGE, "latest")
        yield host


@pytest.fixture(scope="module")
async def strange() -> AsyncIterator[str]:
    async with strange_registry() as running:
        running.images[NAME] = IMAGE
        running.needs_login = True
        yield running.host


@pytest.fixture(params=["docker-registry", "strange"])
def abroad(request: pytest.FixtureRequest, real: str, strange: str) -> Abroad:
    return Abroad(HttpUpstreams(), real if request.param == "docker-registry" else strange)


async def content(abroad: Abroad, who: Upstream, digest: str) -> tuple[int | None, bytes]:
    async with abroad.upstreams.blob(who, NAME, digest, ROOM) as blob:
        return blob.size_bytes, b"".join([chunk async for chunk in blob.chunks])


async def test_a_right_login_is_told_by_its_kind_and_a_wrong_one_refused(abroad: Abroad) -> None:
    assert await abroad.upstreams.try_login(abroad.known()) in {"basic", "token"}
    wrong = replace(abroad.known(), secret="wrong", scope="l_2")
    with pytest.raises(UpstreamRefused):
        await abroad.upstreams.try_login(wrong)


async def test_a_manifest_is_the_same_by_its_tag_and_by_its_digest(abroad: Abroad) -> None:
    who = abroad.known()
    for reference in ("latest", IMAGE.digest):
        assert await abroad.upstreams.digest(who, abroad.one(reference)) == IMAGE.digest
        kind, body, said = await abroad.upstreams.manifest(who, abroad.one(reference))
        assert (kind, body, said) == (MANIFEST_TYPE, IMAGE.manifest, IMAGE.digest)


@pytest.mark.parametrize("part", [IMAGE.config, IMAGE.layer])
async def test_a_blob_comes_whole_and_with_its_size(abroad: Abroad, part: bytes) -> None:
    who, digest = abroad.known(), digest_of(part)

    assert await abroad.upstreams.blob_size(who, NAME, digest) == len(part)
    for _ in range(2):
        assert await content(abroad, who, digest) == (len(part), part)


async def test_a_blob_that_nobody_reads_to_its_end_keeps_nobody_from_the_next(
    abroad: Abroad,
) -> None:
    who, digest = abroad.known(), digest_of(IMAGE.layer)
    async with abroad.upstreams.blob(who, NAME, digest, ROOM):
        pass

    assert await content(abroad, who, digest) == (len(IMAGE.layer), IMAGE.layer)


async def test_no_more_of_a_blob_comes_than_its_bound(abroad: Abroad) -> None:
    exact = Bound(size_bytes=len(IMAGE.layer), why="that it has")
    async with abroad.upstreams.blob(abroad.known(), NAME, digest_of(IMAGE.layer), exact) as blob:
        assert b"".join([chunk async for chunk in blob.chunks]) == IMAGE.layer

    less = replace(exact, size_bytes=len(IMAGE.layer) - 1)
    with pytest.raises(UpstreamLies, match=f"than the {len(IMAGE.layer) - 1} bytes that it has"):
        async with abroad.upstreams.blob(abroad.known(), NAME, digest_of(IMAGE.layer), less):
            raise AssertionError("nothing of it is given")


async def ask(upstreams: Upstreams, who: Upstream, call: str, image: Image) -> object:
    """Ask for a manifest or a blob in one of the ways."""
    match call:
        case "digest":
            return await upstreams.digest(who, image)
        case "manifest":
            return await upstreams.manifest(who, image)
        case "blob_size":
            return await upstreams.blob_size(who, image.name, image.reference)
        case _:
            async with upstreams.blob(who, image.name, image.reference, ROOM) as blob:
                return blob


async def refusal(abroad: Abroad, who: Upstream, call: str, image: Image) -> type[Refused]:
    """Return how a call is refused."""
    with pytest.raises(Refused) as refused:
        await ask(abroad.upstreams, who, call, image)
    assert refused.value.hint
    return type(refused.value)


CALLS = pytest.mark.parametrize("call", ["digest", "manifest", "blob_size", "blob"])


@CALLS
async def test_what_is_not_there_is_missing(abroad: Abroad, call: str) -> None:
    for image in (abroad.one(NOTHING), abroad.one(IMAGE.digest, "me/other")):
        assert await refusal(abroad, abroad.known(), call, image) is UpstreamMissing
    if call in {"digest", "manifest"}:
        found = await refusal(abroad, abroad.known(), call, abroad.one("no-such-tag"))
        assert found is UpstreamMissing


@CALLS
async def test_without_a_login_or_with_a_wrong_one_nothing_is_given(
    abroad: Abroad, call: str
) -> None:
    image = abroad.one(IMAGE.digest if "blob" not in call else digest_of(IMAGE.layer))
    known = abroad.known()
    nobody = replace(known, username=None, secret=None, scope="")
    wrong = replace(known, secret="wrong", scope="l_2")
    # Whoever has the right login, and was let in before, opens the door for nobody else.
    await abroad.upstreams.digest(known, abroad.one())

    for who in (nobody, wrong):
        assert await refusal(abroad, who, call, image) is UpstreamRefused


@CALLS
async def test_where_nobody_answers_it_is_silent(abroad: Abroad, call: str) -> None:
    gone = f"127.0.0.1:{free_port()}"
    who = replace(abroad.known(), host=gone, allowed=frozenset({gone}))

    assert await refusal(abroad, who, call, abroad.one(NOTHING)) is UpstreamSilent


@CALLS
async def test_a_host_in_a_private_network_is_asked_only_when_it_was_allowed(
    abroad: Abroad, call: str
) -> None:
    who = replace(abroad.known(), allowed=frozenset())

    assert await refusal(abroad, who, call, abroad.one(NOTHING)) is HostNotAllowed
