"""Certificates of public names, from a server that believes nothing it has not seen."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from pierhead.server.acme import AcmeError, Kind, Proof, open_acme
from pierhead.server.door import Door
from pierhead.server.public_name import Domain, DomainCertificate
from pierhead.server.serve import listen
from pierhead.server.tls import Certificates
from tests.acceptance.stage import BIN, eventually
from tests.ports import free_port

from .acme_server import AcmeServer, Problem, acme_server

NAME = "build.example.com"


@pytest.fixture(autouse=True)
def trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine trusts the server's authority, as it trusts those of the world."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "acme.crt"))


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@asynccontextmanager
async def named(
    folder: Path, server: AcmeServer, kind: Kind, clock: Clock
) -> AsyncIterator[tuple[DomainCertificate, Certificates]]:
    """Open a door at the name, with nothing but the own certificate yet."""
    own = Certificates(folder / "tls", ("127.0.0.1",), now=clock.now())
    domain = Domain(
        name=NAME, directory=f"{server.url}/directory", kind=kind, web_port=server.web_port or 1
    )
    public = DomainCertificate(folder / "tls", domain, clock.now)
    public.attach(own.context)
    listener = listen("127.0.0.1", server.tls_port or 0)
    door = Door(
        listener,
        lambda _: asyncio.Protocol(),
        context_for=lambda hello: public.context_for(hello, own.context),
        clear_for=(),
    )
    server_port = listener.getsockname()[1]
    door_port[0] = server_port
    try:
        yield public, own
    finally:
        door.close()
        await door.wait_closed()
        listener.close()


door_port = [0]


def shown(trust: bytes, name: str) -> dict[str, object]:
    """Return the certificate that a client accepts by that name."""
    context = ssl.create_default_context(cadata=trust.decode())
    plain = socket.create_connection(("127.0.0.1", door_port[0]), timeout=60)
    with plain, context.wrap_socket(plain, server_hostname=name) as secure:
        found = secure.getpeercert()
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("kind", ["tls-alpn-01", "http-01"])
async def test_a_name_is_proven_and_vouched_for_beside_the_own_certificate(
    tmp_path: Path, kind: Kind
) -> None:
    ports = {"tls_port": free_port()} if kind == "tls-alpn-01" else {"web_port": free_port()}
    async with (
        acme_server(tmp_path, **ports) as server,
        named(tmp_path, server, kind, Clock()) as (public, own),
    ):
        assert not public.is_there
        assert await public.renew()
        assert public.is_there
        by_name = await asyncio.to_thread(shown, server.authority.certificate, NAME)
        by_address = await asyncio.to_thread(shown, own.authority, "127.0.0.1")
        assert not await public.renew()

    assert by_name["subjectAltName"] == (("DNS", NAME),)
    assert by_address["issuer"] != by_name["issuer"]
    assert len(server.orders) == 1
    for file in (tmp_path / "tls").glob("*.pem"):
        assert file.stat().st_mode & 0o777 == 0o600, file
    assert "until" in (tmp_path / "tls" / "domain.txt").read_text()


async def test_the_account_is_kept_and_the_certificate_renewed_in_time(tmp_path: Path) -> None:
    clock = Clock()
    async with (
        acme_server(tmp_path, tls_port=free_port()) as server,
        named(tmp_path, server, "tls-alpn-01", clock) as (public, _),
    ):
        assert await public.renew()
        first = await asyncio.to_thread(shown, server.authority.certificate, NAME)
        clock.ahead = timedelta(days=59)
        assert not await public.renew()
        clock.ahead = timedelta(days=61)
        assert await public.renew()
        second = await asyncio.to_thread(shown, server.authority.certificate, NAME)

    assert first["serialNumber"] != second["serialNumber"]
    assert len(server.accounts) == 1
    assert len({order.account for order in server.orders}) == 1


async def test_a_restart_serves_what_is_there_and_asks_for_nothing(tmp_path: Path) -> None:
    async with acme_server(tmp_path, tls_port=free_port()) as server:
        async with named(tmp_path, server, "tls-alpn-01", Clock()) as (public, _):
            await public.renew()
        asked = len(server.log)
        async with named(tmp_path, server, "tls-alpn-01", Clock()) as (public, _):
            assert public.is_there
            assert not await public.renew()
            await asyncio.to_thread(shown, server.authority.certificate, NAME)
        assert len(server.log) == asked


async def test_a_nonce_that_the_server_does_not_like_is_replaced(tmp_path: Path) -> None:
    async with (
        acme_server(tmp_path, tls_port=free_port()) as server,
        named(tmp_path, server, "tls-alpn-01", Clock()) as (public, _),
    ):
        server.bad_nonces = 3
        assert await public.renew()
        server.bad_nonces = 0


async def test_a_server_that_never_likes_one_is_not_asked_for_ever(tmp_path: Path) -> None:
    async with (
        acme_server(tmp_path, tls_port=free_port()) as server,
        named(tmp_path, server, "tls-alpn-01", Clock()) as (public, _),
    ):
        server.bad_nonces = 1000
        with pytest.raises(AcmeError, match="the server says: not today"):
            await public.renew()
        assert len(server.log) < 20


async def test_how_long_a_server_wants_to_be_left_alone_is_heard(tmp_path: Path) -> None:
    async with (
        acme_server(tmp_path, tls_port=free_port()) as server,
        named(tmp_path, server, "tls-alpn-01", Clock()) as (public, _),
    ):
        server.refusals = [Problem("rateLimited", "too many", 429, retry=3600)]
        with pytest.raises(AcmeError, match="too many") as refused:
            await public.renew()
        assert refused.value.retry_after == 3600
        assert await public.renew()


async def test_a_name_that_leads_elsewhere_is_said_to(tmp_path: Path) -> None:
    async with (
        acme_server(tmp_path, web_port=free_port()) as server,
        open_acme(f"{server.url}/directory", ec.generate_private_key(ec.SECP256R1())) as acme,
    ):

        @contextlib.asynccontextmanager
        async def shows_nothing(_proof: Proof) -> AsyncIterator[None]:
            yield

        with pytest.raises(AcmeError, match=rf"could not check the name: {NAME}"):
            await acme.obtain(NAME, "http-01", shows_nothing)


async def test_a_way_that_is_not_offered_is_said_so(tmp_path: Path) -> None:
    async with (
        acme_server(tmp_path, web_port=free_port()) as server,
        named(tmp_path, server, "tls-alpn-01", Clock()) as (public, _),
    ):
        with pytest.raises(AcmeError, match="does not offer tls-alpn-01"):
            await public.renew()


@pytest.mark.parametrize("url", ["http://acme.example.com/directory", "http://10.0.0.1/"])
async def test_a_server_is_never_asked_in_the_clear(url: str) -> None:
    with pytest.raises(AcmeError, match="over TLS"):
        async with open_acme(url, ec.generate_private_key(ec.SECP256R1())):
            raise AssertionError("it was asked")


def start(folder: Path, port: int, domain_port: int, acme: str) -> subprocess.Popen[bytes]:
    place = ["--data", str(folder / "data"), "--config", str(folder / "config")]
    name = ["--domain", NAME, "--domain-port", str(domain_port), "--acme", f"{acme}/directory"]
    listen_on = ["--host", "0.0.0.0", "--port", str(port), "--no-here"]
    with (folder / "plane.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pierhead.router", *place, *listen_on, *name],
            stdout=log,
            stderr=log,
        )


def add(folder: Path, port: int) -> str:
    place = {"PIERHEAD_CONFIG": str(folder / "config"), "PIERHEAD_URL": f"http://127.0.0.1:{port}"}
    return subprocess.run(
        [BIN / "pierhead", "add", "desktop", "--builds"],
        env={**os.environ, **place},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


async def test_a_control_plane_gets_its_certificate_and_its_codes_need_no_pin(
    tmp_path: Path,
) -> None:
    port, domain_port = free_port(), free_port()
    async with acme_server(tmp_path, tls_port=domain_port) as server:
        plane = start(tmp_path, port, domain_port, server.url)
        try:
            certificate = tmp_path / "data" / "tls" / "domain.pem"

            async def is_there() -> bool:
                return certificate.exists()

            await eventually(is_there, within=120, what="the certificate comes")
            door_port[0] = domain_port
            await eventually(
                lambda: _accepted(server.authority.certificate), within=120, what="it is shown"
            )
            added = await asyncio.to_thread(add, tmp_path, port)
        finally:
            plane.terminate()
            assert plane.wait(60) == 0
    assert added.startswith(f"curl -LsSf https://{NAME}:{domain_port}/join | sh -s -- ")
    assert f"ph1_{NAME}:{domain_port}_-_" in added
    found = x509.load_pem_x509_certificates(certificate.read_bytes())
    assert len(found) == 2


async def _accepted(authority: bytes) -> bool:
    with contextlib.suppress(OSError):
        return bool(await asyncio.to_thread(shown, authority, NAME))
    return False
