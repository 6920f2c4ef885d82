"""The keeper process as a port: starts it, tells it, hears it, and starts it again when it dies."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from pierhead.protocol.lease import Grant
from pierhead.runner.ports import Group

_SCRIPT: Final = Path(__file__).parent.parent / "keeper" / "keeper.py"
_SYSTEM_TRUST: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
TICK_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.2
log = structlog.get_logger()


@dataclass(slots=True)
class _Held:
    """What has to be told again to a keeper that was started anew."""

    order: dict[str, object]
    lost: Callable[[str], None]
    cancel: Callable[[], None]
    groups: list[dict[str, object]] = field(default_factory=list)


class KeeperProcess:
    """One keeper for all builds of a runner."""

    def __init__(self, url: str, *, ca: str | None = None, proxy: str | None = None) -> None:
        # It has no environment and no rules of its own: what this process obeys, it obeys.
        self._way = {"url": url, "ca": ca, "proxy": proxy}
        self._held: dict[str, _Held] = {}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process's number, while it lives."""
        return self._process.pid if self._process else None

    async def run(self) -> None:
        """Keep the process alive until cancelled; then end its input, which ends all builds."""
        try:
            while True:
                try:
                    self._process = await self._start()
                except OSError as error:  # no room for a process just now: leases last a while
                    log.warning("keeper.cannot-start", detail=str(error))
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                for held in self._held.values():
                    self._tell(held.order, *held.groups)
                async with asyncio.TaskGroup() as group:
                    ticking = group.create_task(self._tick())
                    await self._hear(self._process)
                    ticking.cancel()
                log.warning("keeper.ended", code=await self._process.wait())
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            await asyncio.shield(self._end())

    def hold(self, grant: Grant, lost: Callable[[str], None], cancel: Callable[[], None]) -> None:
        """Renew a lease from now on."""
        order: dict[str, object] = {
            "op": "hold",
            "build": grant.build_id,
            "fence": grant.fence,
            "token": grant.token,
            **self._way,
            "ttl_ms": grant.lease_ttl_ms,
            "renew_ms": grant.renew_in_ms,
        }
        self._held[grant.build_id] = _Held(order, lost, cancel)
        self._tell(order)

    def keep(self, group: Group) -> None:
        """Watch over a process group of a build that is held."""
        build_id = group.name.rpartition(".")[0]
        order: dict[str, object] = {
            "op": "group",
            "build": build_id,
            "pid": group.pid,
            "cgroups": list(group.cgroups),
        }
        if build_id in self._held:
            self._held[build_id].groups.append(order)
            self._tell(order)

    def believe(self, ca: str) -> None:
        """Let the router be believed by other authorities, also by builds that are held."""
        self._way["ca"] = ca
        for held in self._held.values():
            held.order["ca"] = ca
        self._tell({"op": "believe", "ca": ca})

    def drop(self, build_id: str) -> None:
        """Forget a build."""
        if self._held.pop(build_id, None) is not None:
            self._tell({"op": "drop", "build": build_id})

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_SCRIPT),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", **_system_trust()},
        )

    def _tell(self, *orders: dict[str, object]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(ConnectionError):
            for order in orders:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._tell({"op": "tick"})

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            news = json.loads(line)
            held = self._held.get(news["build"])
            log.info(f"lease.{news['event']}", build=news["build"], reason=news["reason"])
            if held is None or held.order["fence"] != news["fence"]:
                continue  # said of an older attempt before this side let go of it
            if news["event"] == "lost":
                held.lost(news["reason"])
            elif news["event"] == "cancel":
                held.cancel()

    async def _end(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()


def _system_trust() -> dict[str, str]:
    """Return what OpenSSL reads for the authorities of the system."""
    return {name: os.environ[name] for name in _SYSTEM_TRUST if name in os.environ}
