"""A log arrives whole, in order and with its digest, or says what was left out."""

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pierhead.protocol.digest import digest_of
from pierhead.protocol.errors import LeaseLost, Refused
from pierhead.protocol.lease import LogAccepted
from pierhead.protocol.problem import problem
from pierhead.runner.adapters import spool as spools
from pierhead.runner.adapters.spool import LogSpool
from pierhead.runner.domain.progress import LINE_BYTES_MAX
from pierhead.runner.testing import FakeHold, away, grant


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(spools, "AGAIN_SECONDS", 0.0)


async def arrived(tmp_path: Path, *writes: bytes, hold: FakeHold | None = None) -> bytes:
    """Send a log to its end; return what the router has."""
    hold = hold or FakeHold(grant())
    spool = LogSpool(tmp_path / "log", hold)
    for data in writes:
        spool.write(data)
    spool.close()
    await spool.send()
    assert (spool.size, spool.digest) == (len(hold.log), digest_of(bytes(hold.log)))
    return bytes(hold.log)


async def test_what_was_written_arrives(tmp_path: Path) -> None:
    data = [b"%d\n" % number * 1000 for number in range(300)]

    assert await arrived(tmp_path, *data) == b"".join(data)


async def test_an_empty_log_ends(tmp_path: Path) -> None:
    assert await arrived(tmp_path) == b""


async def test_an_answer_that_is_lost_loses_and_doubles_nothing(tmp_path: Path) -> None:
    class Forgetful(FakeHold):
        turns = 0

        async def append_log(self, offset: int, data: bytes) -> LogAccepted:
            accepted = await super().append_log(offset, data)
            self.turns += 1
            if self.turns % 2:
                raise away()
            return accepted

    data = b"line\n" * 200_000

    assert await arrived(tmp_path, data, hold=Forgetful(grant())) == data


async def test_a_lost_lease_ends_the_sending(tmp_path: Path) -> None:
    class Lost(FakeHold):
        async def append_log(self, offset: int, data: bytes) -> LogAccepted:
            raise LeaseLost(problem("lease-lost", "gone"))

    with pytest.raises(Refused):
        await arrived(tmp_path, b"x", hold=Lost(grant()))


async def test_a_line_of_10_mb_is_cut_into_lines_that_can_be_shown(tmp_path: Path) -> None:
    pieces = [b"x" * 60_000] * 170 + [b"\nend\n"]

    log = await arrived(tmp_path, *pieces)

    assert max(map(len, log.split(b"\n"))) <= LINE_BYTES_MAX
    assert log.replace(b"\n", b"") == b"".join(pieces).replace(b"\n", b"")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), max_size=6))
async def test_no_line_is_too_long_however_it_comes(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, bool]]
) -> None:
    writes = [b"y" * size + b"\n" * ends for size, ends in parts]

    log = await arrived(tmp_path_factory.mktemp("spool"), *writes)

    assert max(map(len, log.split(b"\n"))) <= LINE_BYTES_MAX
    assert log.replace(b"\n", b"") == b"".join(writes).replace(b"\n", b"")


async def test_a_huge_log_keeps_its_head_and_its_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "HEAD_BYTES", 1000)
    monkeypatch.setattr(spools, "TAIL_BYTES", 500)
    writes = [b"%08d\n" % number for number in range(1000)]

    log = await arrived(tmp_path, *writes)

    assert log.startswith(b"".join(writes[:100]))
    assert log.endswith(b"".join(writes[-50:]))
    left_out = 9000 - (len(log) - len(b"\n[0000 bytes of the log were left out here]\n"))
    assert b"[%d bytes of the log were left out here]" % left_out in log


async def test_a_full_disk_does_not_fail_the_build(tmp_path: Path) -> None:
    class Full:
        """Takes some bytes, then none, as a disk does."""

        def __init__(self, file: Any) -> None:
            self._file = file
            self.left = 10
            self.name = file.name

        def write(self, data: bytes) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = self._file.write(data[: self.left])
            self.left -= taken
            return int(taken)

        def close(self) -> None:
            self._file.close()

    hold = FakeHold(grant())
    spool = LogSpool(tmp_path / "log", hold)
    full = Full(spool._file)
    spool._file = full  # type: ignore[assignment]
    spool.write(b"first line\nsecond line\n")
    spool.write(b"third line\n")
    full.left = 1000  # the build was cleared away
    spool.close()
    await spool.send()

    text = bytes(hold.log)
    assert text == b"first line\n[13 bytes of the log were left out here]\nthird line\n"
    assert spool.digest == digest_of(text)
