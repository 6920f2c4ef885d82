"""Why something was refused: one registry of problem types (RFC 9457).

The identity of a problem is its `type`, `urn:pierhead:problem:<slug>`. Slugs are only ever added.
The title and the status of a type never change; `detail` says what happened, `hint` the next
command or step.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

URN: Final = "urn:pierhead:problem:"
PROBLEM_MEDIA_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of refusal: its slug, HTTP status and title."""

    slug: str
    status: int
    title: str

    @property
    def urn(self) -> str:
        """The value of `type` on the wire."""
        return URN + self.slug


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457, section 3.1)."""

    type: str
    title: str
    status: int
    detail: str = ""
    hint: str | None = None
    instance: str | None = None
    # Extension members, each for the types that name it.
    next_offset: int | None = None  # offset-mismatch: where to go on, in bytes
    state: str | None = None  # build-finished: the final state
    retry_after_ms: int | None = None
    low: int | None = None  # version-unsupported: the versions that the server speaks
    high: int | None = None

    @property
    def slug(self) -> str:
        """The part of the type that is ours, or the whole of a foreign type."""
        return self.type.removeprefix(URN)


_TYPES: Final = (
    ProblemType("invalid-document", 400, "The request is not well-formed"),
    ProblemType("version-unsupported", 400, "No common protocol version"),
    ProblemType("unauthenticated", 401, "No valid token"),
    ProblemType("token-expired", 401, "The token has expired"),
    ProblemType("token-spent", 401, "The token was for a build that has its result"),
    ProblemType("not-allowed", 403, "This token may not do that"),
    ProblemType("not-found", 404, "There is no such thing here"),
    ProblemType("method-not-allowed", 405, "This path does not take that method"),
    ProblemType("lease-lost", 409, "The build belongs to another attempt"),
    ProblemType("build-finished", 409, "The build already has its result"),
    ProblemType("key-reused", 409, "The key was used for another request"),
    ProblemType("offset-mismatch", 409, "The bytes do not go on where the last ones ended"),
    ProblemType("in-use", 409, "Builds still run there"),
    ProblemType("limit-reached", 409, "There are as many of them as there may be"),
    ProblemType("runner-name-taken", 409, "Another runner has this name"),
    ProblemType("session-superseded", 409, "Another process of this runner has taken over"),
    ProblemType("join-code-used", 409, "The join code was used already"),
    ProblemType("too-large", 413, "The request is too large"),
    ProblemType("context-too-large", 413, "The build context is too large"),
    ProblemType("digest-mismatch", 422, "The content does not have the digest that was said"),
    ProblemType("result-mismatch", 422, "The result is not what was asked for"),
    ProblemType("plan-unsupported", 422, "The plan asks for something that cannot be done"),
    ProblemType("secret-argument", 422, "A build argument looks like a secret"),
    ProblemType("no-eligible-runner", 422, "No runner can take the build"),
    ProblemType("rate-limited", 429, "Too many requests"),
    ProblemType("internal-error", 500, "Something broke on the server"),
    ProblemType("draining", 503, "The server is stopping"),
    ProblemType("dependency-unavailable", 503, "Something that the server needs is not available"),
    ProblemType("storage-full", 507, "The server's disk is full"),
)
PROBLEM_TYPES: Final = {kind.slug: kind for kind in _TYPES}


def problem(slug: str, detail: str, *, hint: str | None = None, **members: object) -> Problem:
    """Return a problem of a registered type.

    Raises:
        KeyError: there is no such type; that is a mistake in the calling code.
    """
    kind = PROBLEM_TYPES[slug]
    fixed = {"type": kind.urn, "title": kind.title, "status": kind.status}
    return msgspec.convert({**fixed, "detail": detail, "hint": hint, **members}, Problem)
