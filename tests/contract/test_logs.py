"""What every store of logs keeps, asked of the one on a disk and of the simulator's."""

from pathlib import Path

import pytest

from pierhead.router.adapters.logs import FileLogs
from pierhead.router.ports.logs import Logs
from tests.simulation.store import MemoryLogs


@pytest.fixture(params=["memory", "disk"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Logs:
    return MemoryLogs() if request.param == "memory" else FileLogs(tmp_path / "logs")


async def test_a_log_grows_at_its_end_and_is_read_from_anywhere(logs: Logs) -> None:
    assert logs.size("b_1", 1) == 0
    assert await logs.read("b_1", 1, 0, 10) == b""
    logs.begin("b_1", 1, b"note\n")
    await logs.append("b_1", 1, 5, b"one\n")
    await logs.append("b_1", 1, 9, b"two\n")
    assert logs.size("b_1", 1) == 13
    assert await logs.read("b_1", 1, 0, 100) == b"note\none\ntwo\n"
    assert await logs.read("b_1", 1, 5, 3) == b"one"
    assert await logs.read("b_1", 1, 13, 3) == b""
    assert await logs.read("b_1", 1, 2**60, 3) == b""


async def test_each_attempt_has_its_own_log(logs: Logs) -> None:
    await logs.append("b_1", 1, 0, b"first")
    await logs.append("b_1", 2, 0, b"second")
    await logs.append("b_2", 1, 0, b"other")
    assert await logs.read("b_1", 1, 0, 100) == b"first"
    assert await logs.read("b_1", 2, 0, 100) == b"second"


async def test_what_is_hidden_becomes_stars_and_no_longer(logs: Logs) -> None:
    await logs.append("b_1", 1, 0, b"a secret here")
    await logs.hide("b_1", 1, 2, 6)
    assert await logs.read("b_1", 1, 0, 100) == b"a ****** here"


async def test_the_logs_of_a_build_go_together_and_may_be_gone(logs: Logs) -> None:
    await logs.append("b_1", 1, 0, b"first")
    await logs.append("b_1", 2, 0, b"second")
    await logs.append("b_2", 1, 0, b"other")
    for _ in range(2):
        await logs.drop("b_1")
    assert (logs.size("b_1", 1), logs.size("b_1", 2), logs.size("b_2", 1)) == (0, 0, 5)


async def test_logs_to_which_nothing_was_added_since_are_found(logs: Logs) -> None:
    assert list(logs.untouched(2**40)) == []
    await logs.append("b_1", 1, 0, b"first")
    await logs.append("b_2", 1, 0, b"other")
    assert sorted(logs.untouched(2**40)) == ["b_1", "b_2"]
