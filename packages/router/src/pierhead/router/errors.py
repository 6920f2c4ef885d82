"""What `build()` raises, by what the caller can do about it.

BuildError                 .build_id .hint .retryable
├─ BuildFailedError        the user's Dockerfile: show its text and `failure.extract`
├─ BuildCancelledError     somebody, or a newer build, ended it
├─ NoRunnerError           nobody could, or all runners were lost            retryable
├─ RefusedError            not allowed, too large, key reused: ask differently
├─ IntegrityError          not what was promised: alert somebody; `local` is not tried
├─ RouterUnavailableError  no answer; `retry_after` when it said so          retryable
└─ ProtocolMismatchError   says which side to upgrade
"""

from datetime import timedelta
from typing import ClassVar

from pierhead.router.image import BuildId
from pierhead.router.outcome import Cancelled, Failed, NotBuilt


class BuildError(Exception):
    """Base of all of them. `retryable` and `hint` decide what a platform shows and does."""

    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, build_id: BuildId | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.build_id = build_id
        self.hint = hint


class BuildFailedError(BuildError):
    """The build itself failed: show the text, `failure.extract` and `hint`."""

    def __init__(self, failure: Failed, *, build_id: BuildId) -> None:
        super().__init__(failure.message or failure.cause, build_id=build_id, hint=failure.hint)
        self.failure = failure


class BuildCancelledError(BuildError):
    """Somebody, or a newer build, ended it."""

    def __init__(self, cancelled: Cancelled, *, build_id: BuildId) -> None:
        super().__init__(f"cancelled by {cancelled.by}: {cancelled.reason}", build_id=build_id)
        self.cancelled = cancelled


class NoRunnerError(BuildError):
    """Nobody could build it, or whoever did was lost. Later somebody may."""

    retryable = True

    def __init__(self, missing: NotBuilt, *, build_id: BuildId) -> None:
        super().__init__(missing.detail or missing.reason, build_id=build_id)
        self.rejected = missing.rejected


class RefusedError(BuildError):
    """It cannot be granted: ask differently."""


class IntegrityError(BuildError):
    """Content or a result is not what was promised. Never retried, never built elsewhere."""


class RouterUnavailableError(BuildError):
    """The control plane does not answer, or is busy."""

    retryable = True

    def __init__(
        self,
        message: str,
        *,
        build_id: BuildId | None = None,
        hint: str | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message, build_id=build_id, hint=hint)
        self.retry_after = retry_after


class ProtocolMismatchError(BuildError):
    """The two sides have no protocol version in common; the text says which one to upgrade."""
