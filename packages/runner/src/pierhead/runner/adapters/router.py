"""The router over HTTP, as the engine's port."""

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zstandard

from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.http import open_client
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.client.trust import Trust
from pierhead.protocol.lease import (
    Acquire,
    Acquired,
    Grant,
    Heartbeat,
    LogAccepted,
    Phase,
    Release,
    ReleaseReason,
    Signals,
)
from pierhead.protocol.result import Envelope, Receipt
from pierhead.protocol.runner import Capabilities, Session, SessionRelease, SessionRequest
from pierhead.protocol.sealing import SessionKey
from pierhead.runner.adapters.bases import HttpBases
from pierhead.runner.adapters.push import Pusher
from pierhead.runner.ports import Built, Pushed

# A result is worth waiting for: the router may be restarted in between.
REPORT_SECONDS = 600.0
SECRETS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Way:
    """How to reach the control plane, and whom to believe to be that."""

    url: str
    trust: Trust
    insecure_http: bool = False

    def client(self, token: str) -> RouterClient:
        """Return a client for it."""
        return RouterClient(self.url, token=token, ca=self.trust, insecure_http=self.insecure_http)


class HttpControl:
    """The runner's own calls."""

    def __init__(self, way: Way, credential: str, state_id: str) -> None:
        self._way = way
        self._state_id = state_id
        self._credential = credential
        self._client, self._believed = way.client(credential), way.trust.pins
        self._key = SessionKey()
        self._started_ms = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)

    async def open_session(self, process: str, capabilities: Capabilities) -> Session:
        """Begin to work."""
        boot_id = _boot_id()
        request = SessionRequest(
            process=process,
            boot_id=boot_id,
            started_ms=self._started_ms,
            state_id=self._state_id,
            capabilities=capabilities,
            public_key=self._key.public,
        )
        return await self._client.open_session(request)

    async def acquire(self, request: Acquire) -> Acquired:
        """Ask for builds, and say by whom the router is believed to be itself."""
        known = self._way.trust.pins
        if not set(self._believed) <= set(known):  # an open connection would go on with all of them
            await self._client.close()
            self._client = self._way.client(self._credential)
        self._believed = known
        return await self._client.acquire(msgspec.structs.replace(request, authorities=known))

    async def release_session(self, session_id: str) -> None:
        """Say that this process ends."""
        await self._client.release_session(SessionRelease(session_id=session_id))

    def attempt(self, grant: Grant) -> "HttpHold":
        """Return the calls that the grant's token allows."""
        return HttpHold(self._way, grant, self._key)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


class HttpHold:
    """An attempt's calls."""

    def __init__(self, way: Way, grant: Grant, key: SessionKey) -> None:
        self._way = way
        self._key = key
        self._grant = grant
        self._client = way.client(grant.token)
        self._bases = HttpBases(way.url, grant.token, way.trust) if grant.mirror else None

    def context(self, offset: int) -> AsyncIterator[bytes]:
        """Yield the packed context."""
        return self._client.context(self._grant.build_id, self._grant.fence, offset=offset)

    async def secrets(self) -> Mapping[str, bytes]:
        """Return the build's secrets."""
        build_id, fence = self._grant.build_id, self._grant.fence
        sealed = await patiently(lambda: self._client.secrets(build_id, fence), SECRETS_SECONDS)
        return self._key.open(sealed, build_id=build_id, fence=fence)

    def bases(self) -> HttpBases | None:
        """Return where base images come from; none: the router has no such place."""
        return self._bases

    async def enter(self, phase: Phase) -> bool:
        """Say what is done now; true: the build should end."""
        beat = Heartbeat(phase=phase)
        found = await self._client.heartbeat(self._grant.build_id, self._grant.fence, beat)
        return found.cancel_requested

    async def signals(self) -> Signals:
        """Wait for a wish."""
        return await self._client.signals(self._grant.build_id, self._grant.fence)

    async def append_log(self, offset: int, data: bytes) -> LogAccepted:
        """Append to the log."""
        part = zstandard.compress(data, 3)
        return await self._client.append_log(self._grant.build_id, self._grant.fence, offset, part)

    async def push(self, built: Built) -> Pushed:
        """Push an image."""
        async with open_client(self._way.url, token=self._grant.token, ca=self._way.trust) as http:
            pusher = Pusher(http, self._grant.repository)
            await pusher.push(built)
            return Pushed(
                sent_bytes=pusher.sent_bytes,
                present_bytes=pusher.present_bytes,
                sent_layers=pusher.sent_layers,
            )

    async def release(self, reason: ReleaseReason, detail: str) -> None:
        """Give the build back."""
        request = Release(reason=reason, detail=detail)
        await self._client.release(self._grant.build_id, self._grant.fence, request)

    async def report(self, envelope: Envelope) -> Receipt:
        """Hand in the result, again and again until it is taken or refused."""
        build_id, fence = self._grant.build_id, self._grant.fence
        return await patiently(
            lambda: self._client.report(build_id, fence, envelope), REPORT_SECONDS
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()
        if self._bases is not None:
            await self._bases.close()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
