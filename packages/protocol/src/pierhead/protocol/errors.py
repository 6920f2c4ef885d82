"""What the client raises, by what the caller can do about it.

    PierheadError
    ├─ Refused            asked for something that cannot be granted; do not retry
    │  ├─ LeaseLost       the build belongs to another attempt: stop working on it
    │  └─ TokenRefused    the token is missing, wrong, expired or spent
    ├─ Invalid            the request is wrong; ask differently
    ├─ IntegrityError     content or a result is not what was promised; never retry, never fall back
    ├─ Unavailable        the other side is down or busy; retry later
    └─ ProtocolMismatch   no common protocol version; upgrade one side

A build that failed is a result, not an error.
"""

from pierhead.protocol.problem import Problem


class PierheadError(Exception):
    """Base of all errors of the client. Carries the problem document."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem


class Refused(PierheadError):
    """The request cannot be granted in this state; do not retry."""


class LeaseLost(Refused):
    """The build belongs to another attempt, or has its result: stop working on it."""


class TokenRefused(Refused):
    """The token is missing, wrong, expired or spent."""


class Invalid(PierheadError):
    """The document or the request is wrong."""


class IntegrityError(PierheadError):
    """Content or a result is not what was promised: never retried, never a reason to fall back."""


class Unavailable(PierheadError):
    """The other side, or something it needs, is down or busy: retry later."""


class ProtocolMismatch(PierheadError):
    """There is no common protocol version."""


_BY_SLUG: dict[str, type[PierheadError]] = {
    "invalid-document": Invalid,
    "too-large": Invalid,
    "context-too-large": Invalid,
    "plan-unsupported": Invalid,
    "secret-argument": Invalid,
    "method-not-allowed": Invalid,
    "version-unsupported": ProtocolMismatch,
    "unauthenticated": TokenRefused,
    "token-expired": TokenRefused,
    "token-spent": TokenRefused,
    "lease-lost": LeaseLost,
    "build-finished": LeaseLost,
    "digest-mismatch": IntegrityError,
    "result-mismatch": IntegrityError,
}


def error_for(problem: Problem) -> PierheadError:
    """Return the exception for a problem; types we do not know go by their status."""
    kind = _BY_SLUG.get(problem.slug)
    if kind is None:
        retryable = problem.status >= 500 or problem.status == 429
        kind = Unavailable if retryable else Refused
    return kind(problem)
