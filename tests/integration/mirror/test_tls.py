"""Registries over TLS: looked up, checked, and connected to at the address that was checked."""

import ipaddress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pierhead.router.adapters.upstream import HttpUpstreams
from pierhead.router.domain.errors import HostNotAllowed, UpstreamSilent
from pierhead.router.domain.upstream import Address, Bound, image_at
from pierhead.router.ports.upstreams import Upstream
from pierhead.server.authority import issue, new_authority
from tests.integration.mirror.others import Strange, strange_registry
from tests.integration.router.stage import tiny_image

IMAGE = tiny_image("over TLS")
ROOM = Bound(size_bytes=10**6, why="that there are")


def certified(folder: Path, *names: str) -> tuple[Path, str]:
    """Return a file with a certificate for some names and its key, and who vouches for it."""
    now = datetime.now(UTC)
    authority = new_authority("of a registry", now=now)
    file = folder / "registry.pem"
    file.write_bytes(issue(authority, names, now=now).pem)
    return file, authority.certificate.decode()


def upstream(strange: Strange, ca: str | None, **more: object) -> Upstream:
    host = strange.host.replace("127.0.0.1", "localhost")
    return Upstream(host=host, ca=ca, **more)  # type: ignore[arg-type]


async def fetched(upstreams: HttpUpstreams, registry: Upstream) -> bytes:
    image = image_at(registry.host, "me/base", "latest")
    return (await upstreams.manifest(registry, image))[1]


async def test_the_name_is_checked_though_the_address_is_connected_to(tmp_path: Path) -> None:
    file, ca = certified(tmp_path, "localhost")
    looked_at: list[Address] = []

    def may_ask(address: Address) -> bool:
        looked_at.append(address)
        return True

    async with strange_registry(file) as strange:
        strange.images["me/base"] = IMAGE
        strange.realm = f"https://{strange.host.replace('127.0.0.1', 'localhost')}/token"
        upstreams = HttpUpstreams(may_ask=may_ask)
        assert await fetched(upstreams, upstream(strange, ca)) == IMAGE.manifest
    assert ipaddress.ip_address("127.0.0.1") in looked_at


async def test_a_certificate_for_another_name_or_of_another_authority_is_not_believed(
    tmp_path: Path,
) -> None:
    file, ca = certified(tmp_path, "other.example")
    async with strange_registry(file) as strange:
        upstreams = HttpUpstreams(may_ask=lambda _: True)
        for known in (ca, None):
            with pytest.raises(UpstreamSilent, match="not to be trusted") as refused:
                await fetched(upstreams, upstream(strange, known))
            assert "--ca-file" in (refused.value.hint or "")
        assert strange.seen == []


async def test_who_forgot_that_a_registry_speaks_plain_http_is_told_how_to_say_it(
    tmp_path: Path,
) -> None:
    async with strange_registry() as strange:
        upstreams = HttpUpstreams(may_ask=lambda _: True)
        with pytest.raises(UpstreamSilent, match="does not speak TLS") as refused:
            await fetched(upstreams, upstream(strange, None))
    assert "--plain-http" in (refused.value.hint or "")


async def test_a_name_that_leads_into_a_private_network_is_not_followed(tmp_path: Path) -> None:
    file, ca = certified(tmp_path, "localhost")
    async with strange_registry(file) as strange:
        registry = upstream(strange, ca)
        with pytest.raises(HostNotAllowed, match="localhost is in a private network"):
            await fetched(HttpUpstreams(), registry)
        assert strange.seen == []

        strange.images["me/base"] = IMAGE
        strange.realm = f"https://{registry.host}/token"
        named = upstream(strange, ca, allowed=frozenset({registry.host}))
        assert await fetched(HttpUpstreams(), named) == IMAGE.manifest


async def test_from_tls_nobody_is_sent_to_plain_http(tmp_path: Path) -> None:
    file, ca = certified(tmp_path, "localhost")
    async with strange_registry(file) as strange, strange_registry() as plain:
        strange.images["me/base"] = plain.images["me/base"] = IMAGE
        strange.realm = f"https://{strange.host.replace('127.0.0.1', 'localhost')}/token"
        strange.elsewhere = f"http://{plain.host}/stored/"
        upstreams = HttpUpstreams(may_ask=lambda _: True)
        with pytest.raises(HostNotAllowed, match="by plain HTTP, which is not"):
            async with upstreams.blob(upstream(strange, ca), "me/base", IMAGE.digest, ROOM):
                raise AssertionError("nothing is safe there")
        strange.realm = f"http://{plain.host}/token"
        with pytest.raises(HostNotAllowed, match="by plain HTTP, which is not"):
            await fetched(HttpUpstreams(may_ask=lambda _: True), upstream(strange, ca))
        assert plain.seen == []
