"""A runner that is told to end finishes its builds, and gives them back when its time is over."""

import asyncio
import os
import signal
from typing import cast

import pytest

from pierhead.runner import app
from pierhead.runner.engine import Engine


class Heard:
    def __init__(self) -> None:
        self.said: list[str] = []

    async def until(self, count: int) -> None:
        async with asyncio.timeout(25):
            while len(self.said) < count:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)

    def drain(self) -> None:
        self.said.append("drain")

    def abort(self) -> None:
        self.said.append("abort")


@pytest.mark.parametrize(
    ("within", "signals", "said"),
    [
        (None, 1, ["drain"]),
        (None, 2, ["drain", "abort"]),
        (str(app.GIVE_BACK_SECONDS), 1, ["drain", "abort"]),
        ("1", 1, ["drain", "abort"]),
        ("90", 1, ["drain"]),
        ("soon", 1, ["drain"]),
    ],
)
async def test_builds_are_given_back_in_time(
    within: str | None, signals: int, said: list[str]
) -> None:
    heard, loop = Heard(), asyncio.get_running_loop()
    app._obey_signals(cast("Engine", heard), within)
    try:
        for number in range(1, signals + 1):
            os.kill(os.getpid(), signal.SIGTERM)
            await heard.until(number)
        await heard.until(len(said))
        await asyncio.sleep(0.05)  # and nothing more comes
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    assert heard.said == said
