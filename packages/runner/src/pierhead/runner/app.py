"""The composition root of the runner: the only place where adapters are named."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from pierhead.protocol.client.proxy import proxy_for
from pierhead.protocol.client.trust import fingerprints, trust_in
from pierhead.protocol.environment import STOP_WITHIN
from pierhead.runner.adapters.buildah import BuildahBackend
from pierhead.runner.adapters.entropy import jitter, new_id
from pierhead.runner.adapters.ground import LockedGround
from pierhead.runner.adapters.keeper import KeeperProcess
from pierhead.runner.adapters.router import HttpControl, Way
from pierhead.runner.adapters.workspace import DiskWorkspace
from pierhead.runner.config import Joined, lock_file, lock_state, note_authorities, state_id
from pierhead.runner.domain.probe import Check
from pierhead.runner.engine import Engine, Limits

# What it takes to end builds, to clear away what they had, and to say so.
GIVE_BACK_SECONDS: Final = 15
log = structlog.get_logger()


async def examine(folder: Path) -> list[Check]:
    """Try what builds are promised, below a folder that is there; nothing stays in it."""
    with tempfile.TemporaryDirectory(prefix="pierhead-doctor-", dir=folder) as state:
        return await BuildahBackend(Path(state), slots=1, memory_bytes=None).examine()


def way_to(joined: Joined, keep: Callable[[str], None]) -> Way:
    """Return how the control plane is reached, and by whom it is believed to be that.

    `keep` stores other authorities that it names while it is believed.
    """
    there = f"pierhead nodes remove {joined.name} && pierhead add {joined.name} --builds"
    again = f"there {there}; here pierhead runner stop, then pierhead join with that code"
    return Way(joined.url, trust_in(joined.ca, keep, again=again), joined.insecure_http)


async def reaches(joined: Joined) -> None:
    """Ask the control plane for a word, as the runner would.

    Raises:
        PierheadError: nobody answers, or somebody who is not believed.
    """
    async with way_to(joined, lambda _: None).client(joined.credential) as client:
        await client.meta()


async def work(joined: Joined, state: Path, *, end_with_input: bool) -> None:
    """Be a runner until a signal comes, or, when told so, until the input ends.

    Raises:
        PierheadError: the credential is refused, or another process works with the state folder.
    """
    holder = lock_state(state)

    def keep(ca: str) -> None:
        note_authorities(state, ca)
        keeper.believe(ca)
        log.info("authorities.learned", pins=fingerprints(ca))

    way = way_to(joined, keep)
    control = HttpControl(way, joined.credential, state_id(holder))
    keeper = KeeperProcess(joined.url, ca=way.trust.ca, proxy=proxy_for(joined.url, os.environ))
    backend = BuildahBackend(
        state,
        slots=joined.slots,
        memory_bytes=joined.memory_bytes,
        cpus=joined.cpus,
        disk_bytes=joined.disk_bytes,
    )
    engine = Engine(
        control,
        backend,
        keeper,
        ground=LockedGround(state, state / "work", lock_file(state), holder),
        work=state / "work",
        limits=Limits(memory_bytes=joined.memory_bytes, cpu_weight=joined.cpu_weight),
        open_workspace=DiskWorkspace,
        new_id=new_id,
        jitter=jitter,
    )
    _obey_signals(engine, os.environ.get(STOP_WITHIN))
    try:
        keeping = asyncio.create_task(keeper.run())
        watching = asyncio.create_task(_until_input_ends(engine)) if end_with_input else None
        try:
            await engine.run()
        finally:
            if watching is not None:
                watching.cancel()
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
    finally:
        await control.close()
        os.close(holder)


def _obey_signals(engine: Engine, stop_within: str | None) -> None:
    """The first signal lets builds finish; the second one gives them back.

    So does the time, where whoever sends the first one kills what is still there after a while.
    """
    heard = 0
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            log.info("runner.draining")
            engine.drain()
            if stop_within is not None and stop_within.isdecimal():
                loop.call_later(max(0, int(stop_within) - GIVE_BACK_SECONDS), engine.abort)
        else:
            engine.abort()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


async def _until_input_ends(engine: Engine) -> None:
    """Whoever started us holds our input open; when it is gone, nobody wants the builds."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    engine.abort()
