"""Why the router's rules refuse a command. Each names a problem type of the registry."""

from typing import ClassVar

from pierhead.protocol.problem import REMEDIES


class Refused(Exception):
    """A command that the current state, or the caller's token, does not allow."""

    slug: ClassVar[str]

    def __init__(self, detail: str, *, hint: str | None = None, **members: object) -> None:
        super().__init__(detail)
        self.hint = hint or REMEDIES[self.slug]
        self.members = members  # extension members of the problem document


class InvalidRequest(Refused):
    """The request contradicts itself or asks for what is not defined."""

    slug = "invalid-document"


class Unauthenticated(Refused):
    """There is no token, or it is not one of ours."""

    slug = "unauthenticated"


class UnknownMachine(Unauthenticated):
    """The credential of a runner that is none any more."""

    def __init__(self) -> None:
        super().__init__(
            "this machine is not known here any more: it was removed, or never joined",
            hint="pierhead add NAME --builds makes a code; join here with it: pierhead join",
        )


class TokenExpired(Refused):
    """The token was good, and its time is over."""

    slug = "token-expired"


class TokenSpent(Refused):
    """The token was for an attempt whose build has its result, and the receipt's time is over."""

    slug = "token-spent"


class NotAllowed(Refused):
    """The token is good, but not for this."""

    slug = "not-allowed"


class NotFound(Refused):
    """There is no such thing, or the token may not know of it."""

    slug = "not-found"


class LeaseLost(Refused):
    """A newer attempt was granted, or the build was taken back."""

    slug = "lease-lost"


class BuildFinished(Refused):
    """The build already has a final result."""

    slug = "build-finished"


class NotQueued(Refused):
    """The build is not waiting for a runner."""

    slug = "lease-lost"


class KeyReused(Refused):
    """The key was used before, for another request."""

    slug = "key-reused"


class NoEligibleRunner(Refused):
    """Nobody who was asked for can take the build."""

    slug = "no-eligible-runner"


class InUse(Refused):
    """What is asked to go away is still needed."""

    slug = "in-use"


class LimitReached(Refused):
    """There are as many of them as there may be."""

    slug = "limit-reached"


class RotationConflict(Refused):
    """The certificate authority is not in the state that the command is for."""

    slug = "rotation-conflict"


class StaleFingerprint(Refused):
    """What was confirmed is not the certificate authority that there is."""

    slug = "stale-fingerprint"


class OffsetMismatch(Refused):
    """Bytes were sent that do not begin where the stored ones end."""

    slug = "offset-mismatch"


class DigestMismatch(Refused):
    """Content does not have the digest that was said."""

    slug = "digest-mismatch"


class ResultMismatch(Refused):
    """A result names an image that is not the one that was pushed or asked for."""

    slug = "result-mismatch"


class SecretArgument(Refused):
    """A build argument looks like a secret, and nobody said that it is none."""

    slug = "secret-argument"


class SecretsLost(Refused):
    """The secrets of a build cannot be read any more: the installation's key is another one."""

    slug = "not-found"


class RunnerNameTaken(Refused):
    """Another runner has this name."""

    slug = "runner-name-taken"


class SessionSuperseded(Refused):
    """Another process of this runner has taken over."""

    slug = "session-superseded"


class JoinCodeUsed(Refused):
    """The join code was used, by somebody else or for another name."""

    slug = "join-code-used"


class NotReady(Refused):
    """Something that this needs is not there yet; later it may be."""

    slug = "dependency-unavailable"


class UpstreamMissing(NotFound):
    """A registry of somebody else's has no such image."""


class UpstreamRefused(Refused):
    """A registry of somebody else's does not accept a login, or gives something to nobody's."""

    slug = "upstream-refused"


class UpstreamSilent(NotReady):
    """A registry of somebody else's does not answer, or not as a registry does."""


class UpstreamBusy(Refused):
    """A registry of somebody else's gives no more for now."""

    slug = "rate-limited"


class UpstreamLies(DigestMismatch):
    """A registry of somebody else's sent other content than the digest says, or too much."""

    def __init__(self, host: str, detail: str) -> None:
        hint = f"ask whoever runs {host}, or build from another image: FROM IMAGE"
        super().__init__(detail, hint=hint)


class HostNotAllowed(NotAllowed):
    """A registry is where only the owner may let builds go."""


class TooLarge(Refused):
    """The request is over a limit."""

    slug = "too-large"


class PlanUnsupported(Refused):
    """The plan asks for what no part of this release can do; nothing is built without it."""

    slug = "plan-unsupported"


class QueueFull(Refused):
    """As many builds wait as may; one that is taken makes room."""

    slug = "rate-limited"


class Draining(Refused):
    """The server stops; the process that follows it answers."""

    slug = "draining"
