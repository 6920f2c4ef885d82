"""Work in a thread that uses what its caller would close."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run a function in a thread; a cancelled caller waits for its end all the same."""
    return await ended(asyncio.ensure_future(asyncio.to_thread(function, *arguments)))


async def ended(work: "asyncio.Future[T]") -> T:
    """Wait for work that a cancelled caller must not leave behind."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
