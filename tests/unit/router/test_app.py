"""What goes on beside requests."""

import asyncio
import json
from datetime import timedelta

import pytest

from pierhead.router.app import _repeat

FULL, GONE = OSError("full"), OSError("gone")


async def test_what_fails_goes_on_and_is_logged_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    left = [FULL, FULL, FULL, GONE, FULL, None, FULL, FULL]
    over = asyncio.Event()

    async def work() -> None:
        if not left:
            over.set()
        elif error := left.pop(0):
            raise error

    going_on = asyncio.create_task(_repeat(work, timedelta(), failed="work.failed"))
    async with asyncio.timeout(20):
        await over.wait()
    going_on.cancel()

    told = [json.loads(record.message) for record in caplog.records]
    assert [(one["event"], one["error"]) for one in told] == [
        ("work.failed", reason) for reason in ("full", "gone", "full", "full")
    ]
