"""Real sockets and handshakes at one port: who is let in how, and what renewal does to them."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pierhead.server.authority import fingerprint
from pierhead.server.door import LOOPBACK, REFUSAL, Door, Network
from pierhead.server.serve import listen
from pierhead.server.tls import Certificates

NOW = datetime.now(UTC)
NAMES = ("127.0.0.1", "localhost")


class Echo(asyncio.Protocol):
    """Says back what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls", NAMES, now=NOW)


@asynccontextmanager
async def open_door(
    certificates: Certificates | None, clear_for: tuple[Network, ...] = ()
) -> AsyncIterator[int]:
    listener = listen("127.0.0.1", 0)
    door = Door(
        listener,
        lambda _: Echo(),
        context_for=(lambda _: certificates.context) if certificates else None,
        clear_for=clear_for,
    )
    try:
        yield listener.getsockname()[1]
    finally:
        door.close()
        await door.wait_closed()
        listener.close()


def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=certificates.authority.decode())


async def echo(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = b"hello"
) -> bytes:
    writer.write(said)
    return await reader.readexactly(len(said))


def serial(writer: asyncio.StreamWriter) -> str:
    return str(writer.get_extra_info("peercert")["serialNumber"])


async def test_tls_and_plain_text_are_spoken_on_one_port(certificates: Certificates) -> None:
    async with open_door(certificates, LOOPBACK) as port:
        plain = await asyncio.open_connection("127.0.0.1", port)
        secure = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(certificates))
        assert await echo(*plain) == await echo(*secure) == b"hello"
        for _, writer in (plain, secure):
            writer.close()


async def test_plain_text_from_elsewhere_is_answered_with_what_to_do(
    certificates: Certificates,
) -> None:
    async with open_door(certificates) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/builds HTTP/1.1\r\nAuthorization: Bearer pho_x\r\n\r\n")
        assert await reader.read() == REFUSAL
        writer.close()


async def test_who_speaks_tls_where_there_is_none_is_not_let_in() -> None:
    async with open_door(None) as port:
        with pytest.raises((ssl.SSLError, OSError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())


async def test_a_handshake_in_crumbs_is_waited_for(certificates: Certificates) -> None:
    async with open_door(certificates) as port:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at in range(0, len(hello), 100):
            writer.write(hello[at : at + 100])
            await writer.drain()
            await asyncio.sleep(0.01)
        shaken = False
        while not shaken:
            answer = await reader.read(65536)
            assert answer, "it was turned away"
            incoming.write(answer)
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                shaken = True
        assert client.getpeercert() is not None
        writer.close()


async def test_nonsense_and_silence_keep_nobody_else_out(certificates: Certificates) -> None:
    async with open_door(certificates, LOOPBACK) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        nonsense = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        for _, writer in nonsense:
            writer.write(b"\x16\x03\x01\x00\x05nonsense")
        gone = socket.create_connection(("127.0.0.1", port))
        gone.close()

        secure = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(certificates))
        assert await echo(*secure) == b"hello"
        for _, writer in (*silent, *nonsense, secure):
            writer.close()


async def test_a_renewed_certificate_is_shown_to_the_next_and_drops_nobody(
    certificates: Certificates,
) -> None:
    async with open_door(certificates) as port:
        before = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(certificates))
        assert not certificates.renew(NAMES, now=NOW + timedelta(days=59))
        assert certificates.renew(NAMES, now=NOW + timedelta(days=61))
        with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
            # It was made on a day that has not come for this machine.
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting(certificates))
        assert await echo(*before, b"still here") == b"still here"

        assert certificates.renew((*NAMES, "another.example.com"), now=NOW)
        after = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(certificates))
        assert await echo(*before) == await echo(*after) == b"hello"
        assert serial(before[1]) != serial(after[1])
        for _, writer in (before, after):
            writer.close()


def test_another_start_has_the_same_authority_and_the_same_certificate(tmp_path: Path) -> None:
    first = Certificates(tmp_path / "tls", NAMES, now=NOW)
    pins = first.pin, first.key_pin
    again = Certificates(tmp_path / "tls", NAMES, now=NOW + timedelta(days=30))
    assert (again.pin, again.key_pin) == pins
    assert first.pin == fingerprint(first.authority)


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir(mode=0o755)
    Certificates(tmp_path / "tls", NAMES, now=NOW)
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "tls").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("length", [0, 10, 300, 900])
def test_a_certificate_that_was_cut_is_made_anew(tmp_path: Path, length: int) -> None:
    pin = Certificates(tmp_path / "tls", NAMES, now=NOW).pin
    server = tmp_path / "tls" / "server.pem"
    server.write_bytes(server.read_bytes()[:length])
    again = Certificates(tmp_path / "tls", NAMES, now=NOW)
    assert again.pin == pin
    assert again.key_pin.startswith("sha256//")
