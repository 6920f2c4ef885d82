"""A change of the authority that is cut off at any write: files of the test, real handshakes."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pierhead.protocol.authority import AFTER_SECONDS
from pierhead.router.adapters.handshakes import Handshakes
from pierhead.router.config import Settings
from pierhead.router.domain.authority import (
    Announced,
    Authority,
    Steady,
    advance,
    begin,
    cancel,
)
from pierhead.router.domain.reach import reach
from pierhead.server import tls
from pierhead.server.authority import lifetime
from tests.integration.tls.test_renewal import Clock

Step = Callable[[Handshakes], None]


AFTER = timedelta(seconds=AFTER_SECONDS)


def announce(found: Handshakes) -> None:
    found.enter(begin(found.state, found.make(), AFTER, found._clock.now()))


def go_on(found: Handshakes) -> None:
    found.enter(advance(found.state, found._clock.now()))


def take_back(found: Handshakes) -> None:
    found.enter(cancel(found.state))


def replace(found: Handshakes) -> None:
    found.begin_anew(Steady(found.make()))


def opened(folder: Path) -> Handshakes:
    settings = Settings(data=folder, config=folder)
    reached = reach(host="0.0.0.0", port=7443, usual_address="127.0.0.1")
    return Handshakes(settings, reached, Clock(timedelta()))


async def is_shown_to(found: Handshakes, ca: bytes) -> bool:
    """Say whether whoever believes an authority accepts what answers a handshake."""
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=found.context_for(b"")
    )
    async with server:
        trusted = ssl.create_default_context(cadata=ca.decode())
        port = server.sockets[0].getsockname()[1]
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
    return True


class Killed(OSError):
    """The disk is full; or the process is gone, as far as the files can tell."""


def die_at(monkeypatch: pytest.MonkeyPatch, write: int, *, after: bool) -> None:
    """End all with one of the writes: before it is there, or just after."""
    real, count = tls.write_secret, 0

    def write_secret(path: Path, content: bytes) -> None:
        nonlocal count
        count += 1
        if count != write or after:
            real(path, content)
        if count == write:
            raise Killed

    monkeypatch.setattr(tls, "write_secret", write_secret)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", [1, 2])
@pytest.mark.parametrize(
    "steps",
    [
        (announce,),
        (announce, take_back),
        (announce, go_on),
        (announce, go_on, go_on),
        (replace,),
        (announce, replace),
        (announce, go_on, replace),
    ],
    ids=lambda steps: "-".join(step.__name__ for step in steps),
)
async def test_after_a_cut_it_is_before_or_after_and_whoever_is_believed_is_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[Step, ...],
    write: int,
    after: bool,
) -> None:
    first = opened(tmp_path)
    for step in steps[:-1]:
        step(first)
    before, shown = first.state, first.authority
    with monkeypatch.context() as cut:
        die_at(cut, write, after=after)
        with pytest.raises(Killed):
            steps[-1](first)

    again = opened(tmp_path)
    assert (again.state == before) is (write == 1 and not after)
    if not after:  # a full disk, and not the end: who lives on says the same
        assert again.state == first.state
    for certificate in certificates(again.authority):
        assert await is_shown_to(again, certificate)
    if again.state == before:
        assert again.authority == shown
        steps[-1](again)  # the same command does it
        assert again.state != before
    elif steps[-1] is replace:
        for certificate in certificates(shown):
            assert not await is_shown_to(again, certificate)
    assert (tmp_path / "ca.crt").read_bytes() == again.authority
    assert keys_in(tmp_path / "tls/authority.pem") == keys_of(again.state)


def certificates(text: bytes) -> list[bytes]:
    ends = b"-----END CERTIFICATE-----\n"
    return [part + ends for part in text.split(ends) if part]


def keys_in(file: Path) -> int:
    return file.read_bytes().count(b"BEGIN PRIVATE KEY")


def keys_of(state: Authority) -> int:
    """A root that leaves has none any more."""
    return 2 if isinstance(state, Announced) else 1


async def test_the_key_of_the_server_ends_with_an_authority_that_somebody_may_have(
    tmp_path: Path,
) -> None:
    found = opened(tmp_path)
    pins = found.pins()
    announce(found)
    go_on(found)
    assert found.pins()[1] == pins[1]  # lines that were handed out work as long as they say
    replace(found)
    assert found.pins()[1] != pins[1]


async def test_what_one_said_for_the_other_ends_with_the_phase(tmp_path: Path) -> None:
    found = opened(tmp_path)
    announce(found)
    file = tmp_path / "tls/server.pem"
    [_, vouched] = certificates(file.read_bytes().partition(b"PRIVATE KEY-----\n")[2])
    [_, until] = lifetime(vouched)
    assert isinstance(found.state, Announced)
    assert until <= found.state.until + timedelta(hours=1)
    take_back(found)
    assert vouched not in file.read_bytes()
