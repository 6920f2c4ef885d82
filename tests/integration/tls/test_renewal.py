"""The own certificate while a control plane runs, by a clock of the test and real handshakes."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pierhead.router.adapters import handshakes
from pierhead.router.adapters.handshakes import Handshakes
from pierhead.router.config import Settings
from pierhead.router.domain.reach import reach
from pierhead.server.door import Door
from pierhead.server.serve import listen
from tests.acceptance.stage import eventually


class Clock:
    """Behind by so much, until it is set right."""

    def __init__(self, behind: timedelta) -> None:
        self.behind = behind

    def now(self) -> datetime:
        return datetime.now(UTC) - self.behind


class Plane:
    """What answers handshakes, at a port."""

    def __init__(self, found: Handshakes, port: int) -> None:
        self.found, self.port = found, port
        self.trusted = ssl.create_default_context(cadata=found.authority.decode())

    async def serial(self) -> str | None:
        """Return the number of the certificate that a visitor with the pin accepts."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trusted)
        except ssl.SSLCertVerificationError:
            return None
        number = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return str(number)

    async def curl(self, key_pin: str) -> int | None:
        """Connect as the line for a shell does, which knows the pin of the key and no authority."""
        words = ["--silent", "--insecure", "--pinnedpubkey", key_pin, "--max-time", "90"]
        curl = await asyncio.create_subprocess_exec(
            "curl", *words, f"https://127.0.0.1:{self.port}/", stdout=asyncio.subprocess.DEVNULL
        )
        return await curl.wait()


@asynccontextmanager
async def running(folder: Path, clock: Clock) -> AsyncIterator[Plane]:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    settings = Settings(data=folder, config=folder)
    found = Handshakes(settings, reach(host="0.0.0.0", port=port, usual_address="127.0.0.1"), clock)
    door = Door(listener, lambda _: Hangs(), context_for=found.context_for, clear_for=())
    keeping = asyncio.create_task(found.keep())
    try:
        yield Plane(found, port)
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        door.close()
        await door.wait_closed()
        listener.close()


class Hangs(asyncio.Protocol):
    """Ends a connection at the first word."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Look often; at addresses that no other test of this machine changes meanwhile."""
    seen: list[int] = []

    def own_names() -> tuple[str, ...]:
        seen.append(len(seen))
        return "127.0.0.1", "localhost"

    monkeypatch.setattr(handshakes, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(handshakes, "own_names", own_names)
    return seen


# A third of 90 days is left, or nothing of them: the machine slept for so long.
@pytest.mark.parametrize(("days", "valid"), [(61, True), (100, False)])
async def test_it_is_made_anew_while_it_runs_and_whoever_has_a_pin_goes_on(
    tmp_path: Path, looks: list[int], days: int, valid: bool
) -> None:
    clock = Clock(timedelta(days=days))
    async with running(tmp_path, clock) as plane:
        first, pins = await plane.serial(), plane.found.pins()
        assert (first is not None) is valid
        before = len(looks)

        async def has_looked_thrice() -> bool:
            return len(looks) >= before + 3

        await eventually(has_looked_thrice, within=60)
        assert await plane.serial() == first  # by its own clock there is time
        clock.behind = timedelta()

        async def is_new() -> bool:
            return await plane.serial() not in {first, None}

        await eventually(is_new, within=60, what="another certificate is shown")
        assert plane.found.pins() == pins
        assert await plane.curl(pins[1]) == CURL_EMPTY_REPLY
        assert await plane.curl("sha256//" + "A" * 43 + "=") == CURL_OTHER_KEY


CURL_EMPTY_REPLY = 52
CURL_OTHER_KEY = 90
