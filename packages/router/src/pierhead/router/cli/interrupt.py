"""What ^C means while a build is followed: cancel it, or only stop looking.

Whoever sits at a terminal is asked; again ^C is the answer "cancel". A program that interrupts
means cancel at once, and so does SIGTERM, wherever it comes from: nobody may be there to answer.
"""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Coroutine, Iterator

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.cli import live
from pierhead.protocol.cli.speak import INTERRUPTED, tell
from pierhead.protocol.client.client import RouterClient


class Interrupts:
    """The interrupts of this process, one after the other, for whoever waits for them."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[signal.Signals] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came.put_nowait, number)

        self.last = signal.SIGINT

    async def next(self) -> None:
        """Wait for one."""
        self.last = await self._came.get()


async def attend(
    client: RouterClient, build_id: str, story: Coroutine[None, None, int], *, may_detach: bool
) -> int:
    """Tell the story of one's own build to its end, or do what an interrupt means.

    Returns the exit code. `may_detach`: the build goes on without us.
    """
    interrupts, following = Interrupts(), asyncio.create_task(story)
    await first(following, interrupts.next())
    asks = may_detach and interrupts.last == signal.SIGINT
    if not following.done() and asks and _can_ask():
        if await _wants_detach(build_id, following, interrupts):
            following.cancel()
            tell(f"detached. later: pierhead builds watch {build_id}")
            return INTERRUPTED
        tell()
    if following.done():
        return following.result()
    await client.cancel(build_id, CancelRequest(reason="interrupted"))
    await first(following, interrupts.next())  # who interrupts again does not wait for the end
    if following.done():
        following.exception()  # it was told already, and the interrupt is what counts
    return INTERRUPTED


async def look_on(build_id: str, story: Coroutine[None, None, int], *, kept: bool) -> int:
    """Tell the story of a build that may be somebody else's: an interrupt ends only the telling.

    `kept`: its control plane is there for good, and not only while somebody is there for a build.
    """
    interrupts, following = Interrupts(), asyncio.create_task(story)
    await first(following, interrupts.next())
    if following.done():
        return following.result()
    following.cancel()
    goes_on = "the build goes on" if kept else "the build goes on while somebody waits for it"
    tell(f"{goes_on}. end it: pierhead builds cancel {build_id}")
    return INTERRUPTED


async def _wants_detach(
    build_id: str, following: "asyncio.Task[int]", interrupts: Interrupts
) -> bool:
    """Ask what people mean by ^C, until they answer, interrupt again, or the build ends."""
    print(file=sys.stderr, flush=True)  # below the ^C that the terminal has shown
    question = f"^C  cancel {build_id}?  [c]ancel  [d]etach  (again ^C = cancel) "
    with _single_keys(), live.asking(question):  # what is typed before it takes keys is lost
        while (key := await _key(following, interrupts)) not in {b"", b"c", b"d"}:
            live.hide()
            live.ask_again()
        print(key.decode(), file=sys.stderr, flush=True)
        return key == b"d"


async def _key(following: "asyncio.Task[int]", interrupts: Interrupts) -> bytes:
    """Return the key that is pressed; none: interrupted, over, or nobody is there any more."""
    loop, stdin, pressed = asyncio.get_running_loop(), sys.stdin.fileno(), asyncio.Event()
    loop.add_reader(stdin, pressed.set)  # a thread that reads could not be stopped
    try:
        await first(following, interrupts.next(), pressed.wait())
    finally:
        loop.remove_reader(stdin)
    return os.read(stdin, 1).lower() if pressed.is_set() else b""


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Have the terminal hand over each key as it is pressed; ^C stays an interrupt."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _can_ask() -> bool:
    """Say whether somebody sits there: a job in the background may not touch its terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


async def first(*awaited: Awaitable[object]) -> None:
    """Wait until one of them is done, and end those that were only made to be waited for."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, one in zip(tasks, awaited, strict=True):
        if task is not one:
            task.cancel()
