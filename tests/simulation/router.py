"""The router of the simulated world: the real services over a store in memory.

Nothing here waits: a request is held for no time, so each call runs to its end in one step. What
is in the services' memory dies with the router; the store and the logs stay.
"""

import json
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from pierhead.protocol.build import CancelRequest
from pierhead.protocol.digest import digest_of
from pierhead.protocol.lease import (
    Acquire,
    Acquired,
    Heartbeat,
    LogAccepted,
    Release,
    ReleaseReason,
    Renewed,
)
from pierhead.protocol.plan import Submit
from pierhead.protocol.result import Envelope, PlatformImage, Receipt
from pierhead.protocol.runner import Session, SessionRequest
from pierhead.protocol.sealing import SessionKey
from pierhead.router.adapters.vault import KeyVault
from pierhead.router.domain.build import LeasePolicy
from pierhead.router.domain.errors import NotAllowed
from pierhead.router.domain.naming import attempt_name
from pierhead.router.domain.rights import may_push_content
from pierhead.router.domain.token import Attempt, Owner, Runner, require_attempt
from pierhead.router.domain.waiting import WaitingPolicy
from pierhead.router.ports.images import Manifest
from pierhead.router.services.attempts import Attempts
from pierhead.router.services.bells import Bells
from pierhead.router.services.identity import Identity
from pierhead.router.services.intake import Intakes
from pierhead.router.services.lifecycle import Lifecycle
from pierhead.router.services.outlook import Outlooks
from pierhead.router.services.runners import Runners, WayIn
from pierhead.router.services.steps import Steps
from pierhead.router.services.submit import Submissions
from pierhead.router.services.sweep import Sweep

from .chance import Scheduler
from .store import MemoryLogs, MemoryStore

T = TypeVar("T")
KEY: Final = b"the key of this installation"
HOST: Final = "router:7443"
SESSION_KEY: Final = SessionKey()  # of every runner: what a box opens for is tried elsewhere


def secrets_of(key: str | None) -> dict[str, bytes]:
    """The secrets of a build that has some."""
    return {"npm": f"secret of {key}".encode()}


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run what never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the router waits in the middle of a step")


class Numbers:
    """Ids in the order of asking."""

    def __init__(self) -> None:
        self._last = 0

    def id(self, prefix: str) -> str:
        self._last += 1
        return f"{prefix}{self._last}"

    def secret(self) -> str:
        return self.id("secret-")


class Router:
    """One life of the router."""

    def __init__(
        self, store: MemoryStore, logs: MemoryLogs, entropy: Numbers, clock: Scheduler
    ) -> None:
        self.store, self.configs = store, store.configs
        bells, vault = Bells(), KeyVault(KEY)
        lifecycle = Lifecycle(policy=LeasePolicy(), logs=logs, host=HOST)
        self.identity = Identity(store=store, key=KEY, clock=clock)
        self.runners = Runners(
            store=store,
            vault=vault,
            lifecycle=lifecycle,
            bells=bells,
            clock=clock,
            entropy=entropy,
            key=KEY,
            way_in=WayIn(HOST, lambda: (None, "")),
        )
        self.attempts = Attempts(
            store=store,
            intakes=Intakes(logs),
            steps=Steps(store=store, lifecycle=lifecycle, logs=logs, clock=clock),
            vault=vault,
            lifecycle=lifecycle,
            waiting=WaitingPolicy(),
            bells=bells,
            logs=logs,
            clock=clock,
            read_blob=lambda digest: self.configs[digest],
        )
        self.submissions = Submissions(
            store=store,
            vault=vault,
            lifecycle=lifecycle,
            bells=bells,
            logs=logs,
            clock=clock,
            entropy=entropy,
            waiting=WaitingPolicy(),
            outlooks=Outlooks(WaitingPolicy()),
        )
        self.sweep = Sweep(
            store=store, lifecycle=lifecycle, bells=bells, clock=clock, waiting=WaitingPolicy()
        )

    def open_session(self, name: str, request: SessionRequest) -> Session:
        return finish(self.runners.open_session(Runner(name), request))

    def acquire(self, name: str, request: Acquire) -> Acquired:
        return finish(self.runners.acquire(Runner(name), request))

    def fetch(self, build_id: str, fence: int, token: str) -> None:
        attempt = self._attempt(build_id, fence, token)
        stored = finish(self.attempts.held(attempt))
        if stored.submit.plan.secrets:
            sealed = finish(self.attempts.secrets(attempt))
            values = SESSION_KEY.open(sealed, build_id=build_id, fence=fence)
            whole = finish(self.store.read(lambda ledger: ledger.build(stored.parent or build_id)))
            assert whole is not None
            assert values == secrets_of(whole.submit.key), f"{build_id} has other secrets"

    def renew(self, build_id: str, fence: int, token: str) -> Renewed:
        attempt = self._attempt(build_id, fence, token)
        return finish(self.attempts.renew(attempt, Heartbeat(phase="building")))

    def append_log(
        self, build_id: str, fence: int, token: str, offset: int, part: bytes
    ) -> LogAccepted:
        return finish(self.attempts.append_log(self._attempt(build_id, fence, token), offset, part))

    def release(self, build_id: str, fence: int, token: str, reason: ReleaseReason) -> None:
        attempt = self._attempt(build_id, fence, token)
        finish(self.attempts.release(attempt, Release(reason=reason)))

    def push(self, build_id: str, fence: int, token: str, image: "Image") -> None:
        attempt = self._attempt(build_id, fence, token)
        if not may_push_content(attempt, attempt.project):
            raise NotAllowed("this attempt is over")
        self.configs[image.config_digest] = image.config
        manifest = Manifest(
            repository=attempt.project,
            digest=image.digest,
            media_type="application/vnd.oci.image.manifest.v1+json",
            body=image.manifest,
        )
        pending = attempt_name(build_id, fence)
        finish(self.store.write(lambda ledger: ledger.add_manifest(manifest, pending)))

    def report(self, build_id: str, fence: int, token: str, envelope: Envelope) -> Receipt:
        return finish(self.attempts.report(self._attempt(build_id, fence, token), envelope))

    def submit(self, request: Submit) -> str:
        return finish(self.submissions.submit(Owner(), request)).id

    def cancel(self, build_id: str) -> str:
        return finish(self.submissions.cancel(Owner(), build_id, CancelRequest())).state

    def _attempt(self, build_id: str, fence: int, token: str) -> Attempt:
        return require_attempt(finish(self.identity.principal(token)), build_id, fence)


class Image:
    """An image that no other attempt makes: its configuration carries a mark."""

    def __init__(self, mark: str, platform: str) -> None:
        os, architecture = platform.split("/")
        config = {"os": os, "architecture": architecture, "mark": mark}
        self.config = json.dumps(config).encode()
        self.config_digest = digest_of(self.config)
        self.manifest = json.dumps(
            {"config": {"digest": self.config_digest}, "layers": []}
        ).encode()
        self.digest = digest_of(self.manifest)
        self.platform = platform

    def envelope(self, log: bytes) -> Envelope:
        image = PlatformImage(
            platform=self.platform,
            manifest_digest=self.digest,
            config_digest=self.config_digest,
            size_bytes=0,
            layers=(),
        )
        return Envelope(
            outcome="succeeded",
            manifest_digest=self.digest,
            config_digest=self.config_digest,
            platforms=(image,),
            log_bytes=len(log),
            log_digest=digest_of(log),
        )
