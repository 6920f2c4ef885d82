"""Builds in a control plane that is reached over HTTP.

Every call opens its own connection and closes it, so an executor may be made anywhere, used from
any event loop, and never has to be closed. What is lost on the way is asked for again: a submit has
a key, a stream has a cursor.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Self, TypeVar

import anyio

from pierhead.protocol import errors as wire_errors
from pierhead.protocol.build import FINAL_STATES, BuildView, CancelRequest
from pierhead.protocol.client.address import INSECURE_HTTP
from pierhead.protocol.client.client import RouterClient
from pierhead.protocol.client.failure import distrusted
from pierhead.protocol.client.http import Transport
from pierhead.protocol.client.pack import pack
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.client.trust import trusted_ca
from pierhead.protocol.client.upload import upload
from pierhead.protocol.meta import PullTokenRequest
from pierhead.protocol.plan import Submit
from pierhead.protocol.version import RELEASE, SPOKEN, Versions
from pierhead.router.builder import StartCancelled
from pierhead.router.contexts import Folder, open_context
from pierhead.router.errors import (
    BuildError,
    IntegrityError,
    ProtocolMismatchError,
    RefusedError,
    RouterUnavailableError,
)
from pierhead.router.events import START, Cursor, Event, Finished, Progress
from pierhead.router.image import BuildId, ImageInfo
from pierhead.router.outcome import Cancelled, Eligible, NotBuilt, Outcome, Rejection
from pierhead.router.place import Capabilities, PullCredentials
from pierhead.router.reading import (
    capabilities_of,
    event_of,
    outcome_of,
    reasons,
    who_refuses,
)
from pierhead.router.request import BuildPolicy, BuildRequest
from pierhead.router.wanted import check, submit_of, why_of

T = TypeVar("T")
# A control plane that is restarted is back within seconds; one that is gone is not waited for.
PATIENCE: Final = timedelta(seconds=10)
AWAY_SECONDS: Final = 120.0
AGAIN_SECONDS: Final = 1.0
STOP_SECONDS: Final = 12.0
# What a task that is being cancelled waits for, to learn the id of a build that it submitted.
CANCELLED_SUBMIT_SECONDS: Final = 2.0


class RouterExecutor:
    """A control plane at a URL.

    `ca` is its own certificate authority as PEM, when it has no public name; `PIERHEAD_CA` names a
    file with one. `patience` is how long it may be away before that is an error.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca: str | None = None,
        insecure_http: bool = False,
        patience: timedelta = PATIENCE,
        transport: Callable[[], Transport] | None = None,
    ) -> None:
        self.url = url
        self._token = token
        self._ca = ca
        self._insecure_http = insecure_http
        self._seconds = patience.total_seconds()
        self._transport = transport

    @classmethod
    def from_env(cls, *, patience: timedelta = PATIENCE) -> Self:
        """Take `PIERHEAD_URL` and `PIERHEAD_TOKEN`, and `PIERHEAD_CA` where there is one.

        Raises:
            RefusedError: one of them is not set.
        """
        missing = [name for name in ("PIERHEAD_URL", "PIERHEAD_TOKEN") if not os.environ.get(name)]
        if missing:
            hint = "export what `pierhead up` printed, or name them: RouterExecutor(url, token=...)"
            are = "are" if len(missing) > 1 else "is"
            raise RefusedError(f"{' and '.join(missing)} {are} not set", hint=hint)
        insecure = os.environ.get(INSECURE_HTTP) == "1"
        token = os.environ["PIERHEAD_TOKEN"]
        return cls(
            os.environ["PIERHEAD_URL"], token=token, insecure_http=insecure, patience=patience
        )

    def __repr__(self) -> str:
        return f"RouterExecutor({self.url!r})"

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> "RemoteBuild":
        """Pack the context, bring what is missing, and submit.

        Raises:
            BuildError: it was not submitted.
            StartCancelled: it was, and the task was cancelled meanwhile.
        """
        check(request, policy)
        async with self._open() as client, open_context(request.context) as folder:
            await self._patiently(lambda: _same_protocol(client))
            submit, told = await _bring(client, request, policy, folder)
            view = await self._submitted(client, submit, request.key)
        return RemoteBuild(self, view.id, told)

    async def _submitted(self, client: RouterClient, submit: Submit, key: str | None) -> BuildView:
        try:
            return await self._patiently(lambda: client.submit(submit))
        except asyncio.CancelledError as error:
            # The request may have arrived. Sent again with its key it says which build it became,
            # so that this build can be cancelled, or found by whoever asks again.
            with anyio.move_on_after(CANCELLED_SUBMIT_SECONDS, shield=True):
                view = await self._patiently(lambda: client.submit(submit))
                build = RemoteBuild(self, view.id)
                if key is None:
                    await client.cancel(view.id, CancelRequest(reason="nobody waits for it"))
                raise StartCancelled(build) from error
            raise

    async def attach(self, build_id: BuildId) -> "RemoteBuild":
        """Find a build by its id.

        Raises:
            RefusedError: there is none, or it is not yours.
        """
        async with self._open() as client:
            view = await self._patiently(lambda: client.build(build_id))
        return RemoteBuild(self, view.id)

    async def why(
        self, request: BuildRequest, policy: BuildPolicy
    ) -> tuple[Rejection | Eligible, ...]:
        """Say of each runner whether it would take such a build."""
        check(request, policy)
        async with self._open() as client:
            return reasons(await self._patiently(lambda: client.why_not(why_of(request, policy))))

    async def capabilities(self) -> Capabilities:
        """Say what can be built, and where."""
        async with self._open() as client:
            return capabilities_of(await self._patiently(client.capabilities))

    async def pull_credentials(self, image: ImageInfo, *, ttl: timedelta) -> PullCredentials:
        """Make a password that pulls this image's repository for a while."""
        project = image.reference.partition("@")[0].partition("/")[2]
        wanted = PullTokenRequest(ttl_seconds=int(ttl.total_seconds()))
        async with self._open() as client:
            made = await self._patiently(lambda: client.pull_token(project, wanted))
        return PullCredentials(
            registry=made.registry,
            repository=made.repository,
            username=made.username,
            password=made.token,
            expires_at=datetime.fromisoformat(made.expires_at),
        )

    @asynccontextmanager
    async def _open(self, build_id: BuildId | None = None) -> AsyncIterator[RouterClient]:
        with _translated(build_id):
            client = RouterClient(
                self.url,
                token=self._token,
                ca=trusted_ca(self._ca),
                insecure_http=self._insecure_http,
                transport=self._transport() if self._transport else None,
            )
            async with client:
                yield client

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patiently(call, self._seconds)


class RemoteBuild:
    """A build in a control plane. `told`: what happened before it had an id."""

    def __init__(
        self, executor: RouterExecutor, build_id: BuildId, told: tuple[Event, ...] = ()
    ) -> None:
        self._executor = executor
        self._id = build_id
        self._told = told
        self._outcome: Outcome | None = None
        self._latest = START  # how far events were read

    @property
    def id(self) -> BuildId:
        """Its id, for `attach`."""
        return self._id

    def __repr__(self) -> str:
        return f"RemoteBuild({self._id!r})"

    async def events(self, *, after: Cursor = START) -> AsyncGenerator[Event, None]:
        """Yield what happened and happens, to `Finished`; cuts are healed.

        Raises:
            RouterUnavailableError: the control plane stayed away for two minutes.
        """
        if after == START:
            for event in self._told:
                yield event
        away_since: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with aclosing(self._until_cut(after)) as stream:
                    async for after, found in stream:
                        away_since, self._latest = None, after
                        if found is not None:
                            yield found
                        if isinstance(found, Finished):
                            return
                if await self._ended_at(after):
                    return
            except RouterUnavailableError:
                away_since = away_since or loop.time()
                if loop.time() - away_since > AWAY_SECONDS:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def _until_cut(self, after: Cursor) -> AsyncGenerator[tuple[Cursor, Event | None], None]:
        """Yield each event with its cursor, until the last one or until the connection ends."""
        async with (
            self._executor._open(self._id) as client,
            aclosing(client.events(self._id, after=after or None)) as stream,
        ):
            async for told in stream:
                event = event_of(told)
                if isinstance(event, Finished):
                    event = replace(event, outcome=await self._explained(client, event.outcome))
                    self._outcome = event.outcome
                yield Cursor(told.cursor), event

    async def _explained(self, client: RouterClient, outcome: Outcome) -> Outcome:
        """Add who did not take the build, when nobody did."""
        if not isinstance(outcome, NotBuilt) or outcome.reason == "integrity":
            return outcome
        return replace(outcome, rejected=who_refuses(await client.why(self._id)))

    async def _ended_at(self, after: Cursor) -> bool:
        """Say whether nothing follows a cursor, because the build ended there."""
        async with (
            self._executor._open(self._id) as client,
            aclosing(client.events(self._id, after=after or None)) as stream,
        ):
            if (await client.build(self._id)).state not in FINAL_STATES:
                return False
            async for _ in stream:
                return False
        return True

    async def outcome(self) -> Outcome:
        """Wait for the end; how the build went is never raised.

        Raises:
            RouterUnavailableError: the control plane stayed away for two minutes.
        """
        if self._outcome is None:
            async with aclosing(self.events(after=self._latest)) as events:
                async for _ in events:
                    pass
        if self._outcome is None:  # the last event was read before, by another handle
            async with self._executor._open(self._id) as client:
                view = await self._executor._patiently(lambda: client.build(self._id))
                self._outcome = await self._explained(client, outcome_of(view))
        return self._outcome

    async def cancel(self, reason: str) -> Outcome:
        """End it, and return when that is proven, or after 12 s without a proof.

        Raises:
            RouterUnavailableError: the wish could not be delivered. The build goes on.
        """
        if (already := await self._wish(reason)) is not None:
            return already
        with anyio.move_on_after(STOP_SECONDS):
            return await self.outcome()
        return Cancelled(by="the caller", reason=reason, proven=False)

    async def _wish(self, reason: str) -> Outcome | None:
        """Deliver the wish; return the outcome when the build had ended before."""
        wish = CancelRequest(reason=reason[:1000])
        async with self._executor._open(self._id) as client:
            try:
                await self._executor._patiently(lambda: client.cancel(self._id, wish))
            except wire_errors.LeaseLost:
                view = await client.build(self._id)
                return await self._explained(client, outcome_of(view))
        return None


async def _same_protocol(client: RouterClient) -> None:
    """Return if the control plane can be reached and understands us.

    Raises:
        ProtocolMismatchError: it does not, and who has to be upgraded.
    """
    meta = await client.meta()
    if SPOKEN.common(Versions(meta.low, meta.high)) is None:
        older = "this library" if meta.low > SPOKEN.high else "the control plane"
        detail = f"the control plane {meta.release} speaks protocol {meta.low} to {meta.high}"
        hint = f"upgrade {older}: pip install -U pierhead-router"
        raise ProtocolMismatchError(
            f"{detail}, this library {RELEASE} speaks {SPOKEN.high}", hint=hint
        )


async def _bring(
    client: RouterClient, request: BuildRequest, policy: BuildPolicy, folder: Folder
) -> tuple[Submit, tuple[Event, ...]]:
    """Describe the context, send what is missing of it, and return what to submit."""
    packed = await asyncio.to_thread(
        pack, folder.path, dockerfile=request.dockerfile, extra_files=folder.extra_files
    )
    sent = await upload(client, request.project, packed)
    size = packed.size_bytes
    # Without a key of the caller's the call is replayable all the same: a lost answer must not
    # build twice.
    key = f"import-{os.urandom(16).hex()}" if request.key is None else request.key
    return submit_of(request, policy, sent.context, key), (
        Progress(phase="pack", done_bytes=size, total_bytes=size),
        Progress(phase="upload", done_bytes=sent.sent_bytes, total_bytes=sent.sent_bytes),
    )


@contextmanager
def _translated(build_id: BuildId | None) -> Iterator[None]:
    """Turn what the client raises into what an importer catches."""
    try:
        yield
    except wire_errors.PierheadError as error:
        raise _translation(error, build_id) from error


def _translation(error: wire_errors.PierheadError, build_id: BuildId | None) -> BuildError:
    text, hint = str(error), error.problem.hint
    match error:
        case wire_errors.Unavailable() if distrusted(error) is not None:
            hint = "PIERHEAD_CA names a file with the authority to trust; or RouterExecutor(ca=...)"
            return IntegrityError(text, build_id=build_id, hint=hint)
        case wire_errors.Unavailable():
            wait = error.problem.retry_after_ms
            after = timedelta(milliseconds=wait) if wait is not None else None
            return RouterUnavailableError(text, build_id=build_id, hint=hint, retry_after=after)
        case wire_errors.IntegrityError():
            return IntegrityError(text, build_id=build_id, hint=hint)
        case wire_errors.ProtocolMismatch():
            return ProtocolMismatchError(text, build_id=build_id, hint=hint)
        case _:
            return RefusedError(text, build_id=build_id, hint=hint)
