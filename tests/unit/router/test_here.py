"""The runner on the control plane's machine is started again and again, and ends nothing else."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pierhead.router.services import here
from pierhead.router.services.here import supervise

ORDERS: dict[str, object] = {"url": "http://127.0.0.1:1"}


@dataclass
class FakeChild:
    """A process that ends when it is told to."""

    ended: asyncio.Future[int]
    stopped: bool = False

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def stop(self) -> None:
        self.stopped = True


@dataclass
class Machine:
    """Where processes start, or cannot."""

    faults: list[OSError] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    children: list[FakeChild] = field(default_factory=list)

    async def start(self, line: bytes) -> FakeChild:
        self.lines.append(line)
        if self.faults:
            raise self.faults.pop(0)
        self.children.append(FakeChild(asyncio.get_running_loop().create_future()))
        return self.children[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "BACKOFF_FIRST_SECONDS", 0.0)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(25):
        while not true():  # noqa: ASYNC110 - the fakes do not know what is waited for
            await asyncio.sleep(0)


async def test_one_that_ends_is_followed_by_another_with_the_same_orders() -> None:
    machine = Machine()
    supervising = asyncio.create_task(supervise(machine.start, ORDERS))
    await until(lambda: machine.children)
    machine.children[0].ended.set_result(1)
    await until(lambda: len(machine.children) == 2)
    supervising.cancel()
    await asyncio.wait({supervising})

    assert [json.loads(line) for line in machine.lines] == [ORDERS, ORDERS]
    assert all(line.endswith(b"\n") for line in machine.lines)
    assert [child.stopped for child in machine.children] == [False, True]


async def test_one_that_cannot_be_started_is_tried_again_and_ends_nothing_else() -> None:
    machine = Machine(faults=[BlockingIOError("no process"), BrokenPipeError("it is gone")])
    supervising = asyncio.create_task(supervise(machine.start, ORDERS))
    await until(lambda: machine.children)

    assert not supervising.done()
    assert len(machine.lines) == 3
    supervising.cancel()
    await asyncio.wait({supervising})
    assert machine.children[0].stopped
