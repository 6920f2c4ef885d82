"""Why something was refused: one registry of problem types (RFC 9457).

The identity of a problem is its `type`, `urn:pierhead:problem:<slug>`. Slugs are only ever added.
The title and the status of a type never change; `detail` says what happened, `hint` the next
command or step: no refusal is without one.
"""

from typing import Final, NamedTuple

import msgspec

URN: Final = "urn:pierhead:problem:"
PROBLEM_MEDIA_TYPE: Final = "application/problem+json"


class ProblemType(NamedTuple):
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
    ProblemType("rotation-conflict", 409, "The certificate authority is not at that point"),
    ProblemType("stale-fingerprint", 409, "The certificate authority is another one"),
    ProblemType("too-large", 413, "The request is too large"),
    ProblemType("context-too-large", 413, "The build context is too large"),
    ProblemType("digest-mismatch", 422, "The content does not have the digest that was said"),
    ProblemType("result-mismatch", 422, "The result is not what was asked for"),
    ProblemType("plan-unsupported", 422, "The plan asks for something that cannot be done"),
    ProblemType("secret-argument", 422, "A build argument looks like a secret"),
    ProblemType("upstream-refused", 422, "Another registry did not accept that"),
    ProblemType("no-eligible-runner", 422, "No runner can take the build"),
    ProblemType("rate-limited", 429, "Too many requests"),
    ProblemType("internal-error", 500, "Something broke on the server"),
    ProblemType("draining", 503, "The server is stopping"),
    ProblemType("dependency-unavailable", 503, "Something that the server needs is not available"),
    ProblemType("storage-full", 507, "The server's disk is full"),
)
PROBLEM_TYPES: Final = {kind.slug: kind for kind in _TYPES}
# What to do about each, where the place that refuses knows nothing better.
REMEDIES: Final = {
    "invalid-document": "send it differently: GET /api/openapi.json describes every document",
    "version-unsupported": "upgrade whichever side is older: pip install -U pierhead",
    "unauthenticated": "send a token that this control plane gave out: pierhead login URL",
    "token-expired": "ask for a new token: pierhead projects tokens add PROJECT",
    "token-spent": "stop: the build is over, and its token with it",
    "not-allowed": "use a token with more rights: pierhead projects tokens add PROJECT",
    "not-found": "check the name; what a token may not see is not found either",
    "method-not-allowed": "GET /api/openapi.json says which methods each path takes",
    "lease-lost": "stop working on the build: it was given to another attempt",
    "build-finished": "stop working on the build: it is over",
    "key-reused": "choose a new key: this one stands for another request",
    "offset-mismatch": "go on at `next_offset`",
    "in-use": "wait for the builds, or cancel them, then ask again",
    "limit-reached": "remove what nobody needs any more, then ask again",
    "runner-name-taken": "choose another name for the runner",
    "session-superseded": "stop: another process of the same runner works now",
    "join-code-used": "ask the owner for a new code: pierhead add NAME --builds",
    "rotation-conflict": "pierhead ca says how far the change of the authority is",
    "stale-fingerprint": "look again, and confirm what is there now: pierhead ca",
    "too-large": "send less; GET /api/capabilities has the limits",
    "context-too-large": "leave out what the build does not need, in .dockerignore",
    "digest-mismatch": "it was damaged on its way: send it again from the start",
    "result-mismatch": "look at the machine that sent it: that is not what was asked for",
    "plan-unsupported": "ask for it differently, or leave it out",
    "secret-argument": "give it with --secret; if it is none: --allow-secret-args",
    "upstream-refused": "check the name of the registry, and the login: pierhead registries ls",
    "no-eligible-runner": "pierhead builds why names each runner and why it does not take it",
    "rate-limited": "wait a little, then ask again",
    "internal-error": "it is a mistake in pierhead; the server's log says more",
    "draining": "the server is stopping: ask again, the next process answers",
    "dependency-unavailable": "ask again later",
    "storage-full": "free space on the disk of the control plane",
}


def problem(slug: str, detail: str, *, hint: str | None = None, **members: object) -> Problem:
    """Return a problem of a registered type; without a hint of its own it has the type's remedy.

    Raises:
        KeyError: there is no such type; that is a mistake in the calling code.
    """
    kind = PROBLEM_TYPES[slug]
    fixed = {"type": kind.urn, "title": kind.title, "status": kind.status}
    said = {"detail": detail, "hint": hint or REMEDIES[slug]}
    return msgspec.convert({**fixed, **said, **members}, Problem)
