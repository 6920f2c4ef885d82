"""`RoutedImageBuilder`: builds wherever the policy says, and answers like a local builder.

A build lives in the control plane, not in this process. So a process that dies loses nothing: the
same `key` finds the build again. A task that is cancelled on purpose takes its build along.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Final, Literal, Protocol, TypeAlias, assert_never

import anyio

from pierhead.router.errors import (
    BuildCancelledError,
    BuildFailedError,
    IntegrityError,
    NoRunnerError,
    RouterUnavailableError,
)
from pierhead.router.events import START, Cursor, Event, FellBack, Finished, OnEvent
from pierhead.router.image import BuildId, ImageInfo
from pierhead.router.outcome import (
    Built,
    Cancelled,
    Eligible,
    Failed,
    NotBuilt,
    Outcome,
    Rejection,
)
from pierhead.router.place import Capabilities, PullCredentials
from pierhead.router.request import BuildPolicy, BuildRequest
from pierhead.router.wanted import check_form

# Whoever cancels a task waits for it; a control plane that does not answer must not hold them up.
CANCEL_SECONDS: Final = 5.0
WhenCancelled: TypeAlias = Literal["cancel", "detach"]


class ImageBuilder(Protocol):
    """What a platform's own builder is, and what `RoutedImageBuilder` is: swap them freely."""

    async def build(self, request: BuildRequest, *, on_event: OnEvent | None = None) -> ImageInfo:
        """Build one image.

        Raises:
            BuildError: there is no image; the class says what can be done.
        """
        ...


class Build(Protocol):
    """A build that goes on whatever becomes of this process."""

    @property
    def id(self) -> BuildId:
        """Its id, for `attach`."""
        ...

    def events(self, *, after: Cursor = START) -> AsyncGenerator[Event, None]:
        """Yield what happened and happens, to `Finished`; cuts are healed.

        Whoever reads slowly slows down the reading and never the build.

        Raises:
            RouterUnavailableError: the control plane stayed away. The build goes on.
        """
        ...

    async def outcome(self) -> Outcome:
        """Wait for the end; how the build went is never raised."""
        ...

    async def cancel(self, reason: str) -> Outcome:
        """End it, and return when that is proven, or after 12 s without a proof."""
        ...


class StartCancelled(asyncio.CancelledError):
    """The task was cancelled while its build was submitted; the build exists."""

    def __init__(self, build: Build) -> None:
        super().__init__("cancelled while the build was submitted")
        self.build = build


class BuildExecutor(Protocol):
    """Where builds live: a control plane far away, one in this process, or a script of a test."""

    async def start(self, request: BuildRequest, policy: BuildPolicy) -> Build:
        """Submit a build, or find the one that was submitted with this key.

        Raises:
            BuildError: it was not submitted.
            StartCancelled: it was, and the task was cancelled meanwhile.
        """
        ...

    async def attach(self, build_id: BuildId) -> Build:
        """Find a build by its id.

        Raises:
            RefusedError: there is none, or it is not yours.
        """
        ...

    async def why(
        self, request: BuildRequest, policy: BuildPolicy
    ) -> tuple[Rejection | Eligible, ...]:
        """Say of each runner whether it would take such a build."""
        ...

    async def capabilities(self) -> Capabilities:
        """Say what can be built, and where."""
        ...

    async def pull_credentials(self, image: ImageInfo, *, ttl: timedelta) -> PullCredentials:
        """Make a password that pulls this image's repository for a while."""
        ...


class RoutedImageBuilder:
    """An `ImageBuilder` over an executor.

    `local` is the platform's own builder. It builds when the control plane cannot be reached, or
    says that nobody there can, and the policy allows it.
    """

    def __init__(
        self,
        executor: BuildExecutor,
        *,
        local: ImageBuilder | None = None,
        policy: BuildPolicy | None = None,
    ) -> None:
        self._executor = executor
        self._local = local
        self._policy = policy or BuildPolicy()

    async def start(self, request: BuildRequest, *, policy: BuildPolicy | None = None) -> Build:
        """Submit a build and return without waiting for it. The same key finds it again.

        Raises:
            BuildError: it was not submitted.
        """
        check_form(request)
        return await self._executor.start(request, policy or self._policy)

    async def attach(self, build_id: BuildId) -> Build:
        """Find a build by its id, after a restart.

        Raises:
            RefusedError: there is none, or it is not yours.
        """
        return await self._executor.attach(build_id)

    async def why(self, request: BuildRequest) -> tuple[Rejection | Eligible, ...]:
        """Say of each runner whether it would take such a build. Nothing is queued."""
        check_form(request)
        return await self._executor.why(request, self._policy)

    async def capabilities(self) -> Capabilities:
        """Say what can be built, and where."""
        return await self._executor.capabilities()

    async def pull_credentials(self, image: ImageInfo, *, ttl: timedelta) -> PullCredentials:
        """Make a password that pulls this image's repository, for at most a day."""
        return await self._executor.pull_credentials(image, ttl=ttl)

    async def build(
        self,
        request: BuildRequest,
        *,
        on_event: OnEvent | None = None,
        when_cancelled: WhenCancelled = "cancel",
    ) -> ImageInfo:
        """Build one image, telling `on_event` what happens.

        When the task is cancelled, or `on_event` raises, the build is cancelled as well, within
        5 s; `when_cancelled="detach"` leaves it running.

        Raises:
            BuildError: there is no image; the class says what can be done.
        """
        check_form(request)
        if self._local is not None and self._policy.on == "local":
            return await self._local.build(request, on_event=on_event)
        last = self._local if self._policy.may_build_here else None
        try:
            build = await self._started(request, when_cancelled)
        except RouterUnavailableError as error:
            if last is None:
                raise
            return await _locally(last, request, on_event, str(error))
        finished = await self._followed(build, on_event, when_cancelled)
        match finished.outcome:
            case NotBuilt(reason=reason, detail=detail) if last is not None:
                if reason != "integrity":
                    return await _locally(last, request, on_event, detail or reason)
        await tell(on_event, finished)
        return image_or_raise(finished.outcome, build.id)

    async def _started(self, request: BuildRequest, when_cancelled: WhenCancelled) -> Build:
        try:
            return await self._executor.start(request, self._asked())
        except StartCancelled as cancelled:
            if when_cancelled == "cancel":
                await _cancel(cancelled.build)
            raise

    def _asked(self) -> BuildPolicy:
        """Return the policy for the control plane: with a builder of our own, it builds nothing
        on its own machine. Never both.
        """
        if self._local is None or not self._policy.may_build_here:
            return self._policy
        return BuildPolicy(
            on=self._policy.on,
            where=self._policy.where,
            if_nobody_can="fail",
            patience=self._policy.patience,
            here_memory_bytes=self._policy.here_memory_bytes,
            secret_args=self._policy.secret_args,
        )

    async def _followed(
        self, build: Build, on_event: OnEvent | None, when_cancelled: WhenCancelled
    ) -> Finished:
        """Tell all but the end, which is not the end when a local builder follows."""
        try:
            async with aclosing(build.events()) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        return event
                    await tell(on_event, event)
            return Finished(outcome=await build.outcome())
        except RouterUnavailableError:
            raise  # the build goes on: nobody asked for its end
        except BaseException:
            if when_cancelled == "cancel":
                await _cancel(build)
            raise


async def _locally(
    local: ImageBuilder, request: BuildRequest, on_event: OnEvent | None, reason: str
) -> ImageInfo:
    await tell(on_event, FellBack(reason=reason, to="local"))
    return await local.build(request, on_event=on_event)


async def tell(on_event: OnEvent | None, event: Event) -> None:
    """Tell a listener that may be asynchronous, or may not be there."""
    if on_event is not None and (waiting := on_event(event)) is not None:
        await waiting


async def _cancel(build: Build) -> None:
    """Cancel a build although this task is being cancelled, but do not wait for ever."""
    with anyio.move_on_after(CANCEL_SECONDS, shield=True):
        try:
            await build.cancel("the caller's task was cancelled")
        except RouterUnavailableError:
            return  # the caller is told of the cancellation, whatever became of the wish


def image_or_raise(outcome: Outcome, build_id: BuildId) -> ImageInfo:
    """Return the image.

    Raises:
        BuildError: there is none.
    """
    match outcome:
        case Built(image=image):
            return image
        case Failed():
            raise BuildFailedError(outcome, build_id=build_id)
        case Cancelled():
            raise BuildCancelledError(outcome, build_id=build_id)
        case NotBuilt(reason="integrity"):
            raise IntegrityError(outcome.detail or outcome.reason, build_id=build_id)
        case NotBuilt():
            raise NoRunnerError(outcome, build_id=build_id)
        case _:
            assert_never(outcome)
