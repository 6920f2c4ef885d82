"""The process that speaks TLS for others, by real handshakes: what it carries, and its end."""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pierhead.server import gateway
from pierhead.server.authority import Pair, issue, new_authority, vouch
from pierhead.server.door import Door
from pierhead.server.gateway import Gateway
from pierhead.server.peer import Peer
from pierhead.server.public_name import PROOF_PROTOCOL, asks_for_proof
from pierhead.server.serve import listen
from pierhead.server.tls import Certificates, Signing
from tests.acceptance.stage import eventually
from tests.loop_time import loop_time
from tests.sight import is_gone

NOW = datetime.now(UTC)
NAMES = ("127.0.0.1", "localhost")
DOMAIN = "build.example.com"
LARGE = os.urandom(1 << 20) * 8


class Echo(asyncio.Protocol):
    """Says back what it hears; keeps who came, and which of its connections are open."""

    def __init__(self, inside: "Inside", peer: Peer | None) -> None:
        self._inside, self._peer = inside, peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._inside.came.append(self._peer)
        self._inside.open.append(transport)

    def data_received(self, data: bytes) -> None:
        if data == b"end":
            self.transport.close()
        else:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inside.open.remove(self.transport)


@dataclass(slots=True)
class Inside:
    """A door whose TLS is spoken by the gate, and what is behind it."""

    folder: Path
    certificates: Certificates
    gateway: Gateway
    port: int = 0
    came: list[Peer | None] = field(default_factory=list)
    open: list[asyncio.Transport] = field(default_factory=list)

    async def visit(
        self, name: str = "127.0.0.1", authority: bytes | None = None, protocol: str = "http/1.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        trusted = (authority or self.certificates.authority).decode()
        context = ssl.create_default_context(cadata=trusted)
        context.set_alpn_protocols([protocol])
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=name
        )

    @property
    def pid(self) -> int:
        assert self.gateway.pid is not None
        return self.gateway.pid

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def untaken(self) -> int:
        """Return how many connections were given to the gate, and wait before it."""
        assert self.gateway._life is not None
        return len(self.gateway._life._given)

    async def until_missed(self) -> None:
        """Return when it was noticed that there is no gate; the time may stand still."""
        while self.gateway.pid is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def is_carried_again(self) -> bool:
        visitor = await self.visit()
        assert await echo(visitor) == b"hello"
        visitor[1].close()
        return self.came[-1] is not None


@asynccontextmanager
async def opened(folder: Path, domain: str | None = None) -> AsyncIterator[Inside]:
    certificates = Certificates(folder / "tls", NAMES, now=NOW)
    gateway = Gateway(folder / "tls", domain, stays=asks_for_proof)
    inside = Inside(folder / "tls", certificates, gateway)
    listener = listen("127.0.0.1", 0)
    inside.port = listener.getsockname()[1]
    door = Door(
        listener,
        lambda peer: Echo(inside, peer),
        context_for=lambda _: certificates.context,
        clear_for=(),
        through=gateway.through,
    )
    try:
        yield inside
    finally:
        door.close()
        await door.wait_closed()
        listener.close()
        for transport in list(inside.open):
            transport.abort()
        gateway.close()
        await gateway.wait_closed()


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Inside]:
    async with opened(tmp_path) as found:
        yield found


async def echo(
    visitor: tuple[asyncio.StreamReader, asyncio.StreamWriter], said: bytes = b"hello"
) -> bytes:
    reader, writer = visitor
    writer.write(said)
    return await reader.readexactly(len(said))


async def test_what_is_said_by_tls_is_heard_here_and_from_whom(inside: Inside) -> None:
    visitor = await inside.visit()
    assert await echo(visitor) == b"hello"
    assert await echo(visitor, LARGE) == LARGE
    assert inside.came == [Peer(*visitor[1].get_extra_info("sockname"))]
    # The connection itself is the other process's.
    [transport] = inside.open
    assert transport.get_extra_info("socket").family == socket.AF_UNIX
    visitor[1].close()


async def test_either_side_may_end_it_and_the_last_bytes_arrive(inside: Inside) -> None:
    reader, writer = await inside.visit()
    assert await echo((reader, writer)) == b"hello"
    writer.write(b"end")
    assert await reader.read() == b""
    writer.close()

    _, writer = await inside.visit()
    writer.write(b"hello")
    writer.close()

    async def nobody_is_left() -> bool:
        return len(inside.came) == 2 and not inside.open

    await eventually(nobody_is_left, within=60)


async def test_a_visitor_who_reads_nothing_is_not_read_for(inside: Inside) -> None:
    reader, writer = await inside.visit()
    assert await echo((reader, writer)) == b"hello"
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    [transport] = inside.open
    for _ in range(64):
        transport.write(LARGE[: 1 << 20])
    before = resident(inside.pid)
    assert await left_to_say(transport) > 32 << 20
    assert resident(inside.pid) - before < 8 << 20
    # Who reads again gets everything.
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await reader.readexactly(64 << 20) == LARGE[: 1 << 20] * 64
    writer.close()


async def test_a_visitor_who_is_not_heard_inside_is_not_read_for(inside: Inside) -> None:
    context = ssl.create_default_context(cadata=inside.certificates.authority.decode())
    plain = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", inside.port))
    visitor = await asyncio.to_thread(context.wrap_socket, plain, server_hostname="localhost")
    await asyncio.to_thread(visitor.sendall, b"hello")

    async def is_in() -> bool:
        return len(inside.open) == 1

    await eventually(is_in, within=60)
    [transport] = inside.open
    transport.pause_reading()
    before = resident(inside.pid)
    saying = asyncio.create_task(asyncio.to_thread(visitor.sendall, LARGE * 8))
    await asyncio.wait([saying], timeout=2)
    assert not saying.done()
    assert resident(inside.pid) - before < 8 << 20
    transport.abort()
    with pytest.raises(OSError, match=r"."):
        await saying
    visitor.close()


async def left_to_say(transport: asyncio.WriteTransport) -> int:
    """Return how many bytes nobody takes from it."""

    async def stands_still() -> bool:
        left = transport.get_write_buffer_size()
        await asyncio.sleep(0.3)
        return transport.get_write_buffer_size() == left

    await eventually(stands_still, within=60)
    return transport.get_write_buffer_size()


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_nonsense_silence_and_those_who_leave_cost_nothing_that_stays(
    inside: Inside,
) -> None:
    first = await inside.visit()
    assert await echo(first) == b"hello"
    before = inside.descriptors()
    for said in (b"\x16\x03\x01\x00\x05nonsense", b"\x16\x03\x01\x00\x00", b"\x16\x03\x01"):
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", inside.port)
            writer.write(said)
            await writer.drain()
            writer.close()
    gone = [await inside.visit() for _ in range(20)]
    for _, writer in gone:
        writer.transport.abort()

    async def as_before() -> bool:
        return inside.descriptors() == before

    await eventually(as_before, within=60)
    assert await echo(first) == b"hello"
    first[1].close()


async def test_a_gate_out_of_descriptors_turns_visitors_away_and_goes_on(inside: Inside) -> None:
    first = await inside.visit()
    assert await echo(first) == b"hello"
    few = inside.descriptors() + 20
    resource.prlimit(inside.pid, resource.RLIMIT_NOFILE, (few, few))
    visitors, turned_away = [], 0
    for _ in range(20):
        try:
            visitors.append(await inside.visit())
        except OSError:
            turned_away += 1
    assert 0 < len(visitors) < 20
    assert turned_away == 20 - len(visitors)
    for visitor in (first, *visitors):
        assert await echo(visitor) == b"hello"
    for _, writer in visitors:
        writer.close()

    async def has_room_again() -> bool:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            visitor = await inside.visit()
            visitor[1].close()
            return True
        return False

    await eventually(has_room_again, within=60)
    first[1].close()


async def test_when_it_is_killed_visitors_hear_it_and_the_next_are_answered(
    inside: Inside,
) -> None:
    reader, writer = await inside.visit()
    assert await echo((reader, writer)) == b"hello"
    before = inside.pid
    with loop_time() as time:
        time.stop()  # the next gate is not begun at once
        os.kill(before, signal.SIGKILL)
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()
        await inside.until_missed()

        # By the door's own TLS at first, as no peer shows, and by the next gate soon.
        passed_by = await inside.visit()
        assert await echo(passed_by) == b"hello"
        assert inside.came[-1] is None
        passed_by[1].close()
        time.go_on()
        await eventually(inside.is_carried_again, within=60)
    assert inside.pid != before


async def test_one_that_takes_nothing_is_passed_by_and_then_ended(inside: Inside) -> None:
    first = await inside.visit()
    assert await echo(first) == b"hello"
    before = inside.pid
    os.kill(before, signal.SIGSTOP)
    stuck = asyncio.create_task(inside.visit())  # given away before anything was noticed

    async def is_given() -> bool:
        return inside.untaken() == 1

    await eventually(is_given, within=60)
    with loop_time() as time:
        time.leap(gateway.LATE_SECONDS + 1)
        passed_by = await inside.visit()
        assert await echo(passed_by) == b"hello"
        assert inside.came[-1] is None
        time.leap(gateway.HUNG_SECONDS)
        with contextlib.suppress(OSError):  # what it carried ends with it
            assert await first[0].read() == b""
        with pytest.raises(OSError):  # noqa: PT011 - reset, or closed in the middle of the handshake
            await stuck
        assert await echo(passed_by) == b"hello"
        await eventually(inside.is_carried_again, within=60)
    assert inside.pid != before
    for _, writer in (first, passed_by):
        writer.close()


async def test_what_is_open_goes_on_when_no_more_comes_and_then_it_ends(inside: Inside) -> None:
    visitor = await inside.visit()
    assert await echo(visitor) == b"hello"
    pid = inside.pid
    inside.gateway.close()
    await inside.gateway.wait_closed()
    assert await echo(visitor, LARGE) == LARGE
    visitor[1].close()

    async def has_ended() -> bool:
        return is_gone(pid)

    await eventually(has_ended, within=60)


async def test_the_next_visitor_sees_what_the_files_hold_then(inside: Inside) -> None:
    before = await inside.visit()
    assert await echo(before) == b"hello"
    assert inside.certificates.renew((*NAMES, "another.example.com"), now=NOW)
    after = await inside.visit("another.example.com")
    assert await echo(after) == await echo(before) == b"hello"
    # Another authority signs, and the one before vouches for it.
    old = inside.certificates.signing.signs
    new = new_authority("another", now=NOW)
    vouched = vouch(old, new.certificate, now=NOW, until=NOW + timedelta(days=1))
    both = Signing(signs=new, beside=Pair(b"", old.certificate), vouched=vouched)
    inside.certificates.change(both, (*NAMES, "another.example.com"), now=NOW)
    for authority in (old, new):
        assert await echo(await inside.visit(authority=authority.certificate)) == b"hello"
    inside.certificates.change(Signing(signs=new), (*NAMES, "another.example.com"), now=NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        await inside.visit(authority=old.certificate)
    # What cannot be read changes nothing.
    (inside.folder / "server.pem").write_bytes(b"no certificate")
    third = await inside.visit("another.example.com")
    for visitor in (before, after, third):
        assert await echo(visitor) == b"hello"
        visitor[1].close()


async def test_a_public_name_is_vouched_for_by_its_own_certificate(tmp_path: Path) -> None:
    async with opened(tmp_path, DOMAIN) as inside:
        with pytest.raises(ssl.SSLCertVerificationError):
            await inside.visit(DOMAIN)
        world = new_authority("the world", now=NOW)
        (tmp_path / "tls" / "domain.pem").write_bytes(issue(world, (DOMAIN,), now=NOW).pem)
        by_name = await inside.visit(DOMAIN, world.certificate)
        by_address = await inside.visit()
        for visitor in (by_name, by_address):
            assert await echo(visitor) == b"hello"
            visitor[1].close()
        assert None not in inside.came


async def test_the_proof_of_a_name_is_not_left_to_it(inside: Inside) -> None:
    for protocol in ("http/1.1", PROOF_PROTOCOL):
        visitor = await inside.visit(protocol=protocol)
        assert await echo(visitor) == b"hello"
        visitor[1].close()
    assert [peer is None for peer in inside.came] == [False, True]


async def test_without_a_certificate_it_says_so_and_the_door_answers_by_itself(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as inside:
        (tmp_path / "tls" / "server.pem").unlink()
        with loop_time() as time:
            time.stop()  # the next one is not begun at once
            with contextlib.suppress(OSError):
                await inside.visit()
            await inside.until_missed()
            visitor = await inside.visit()
        assert await echo(visitor) == b"hello"
        assert inside.came == [None]
        visitor[1].close()
