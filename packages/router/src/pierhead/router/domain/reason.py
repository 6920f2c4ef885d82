"""Why a build failed, as far as its runner may say it."""

from typing import Final

import msgspec

from pierhead.protocol.result import Cause, Envelope, Failure
from pierhead.router.domain.errors import ResultMismatch

# Of what happened before and between the attempts a runner knows nothing.
_OF_THE_ROUTER: Final[tuple[Cause, ...]] = ("no-runner", "runners-lost", "waited-too-long")
_NONE: Final = Failure(cause="runner", message="its runner gave no reason")


def with_reason(envelope: Envelope) -> Envelope:
    """Return the result of a failed build, which always has a reason.

    Raises:
        ResultMismatch: it is one that no runner can know.
    """
    failure = envelope.failure or _NONE
    if failure.cause in _OF_THE_ROUTER:
        raise ResultMismatch(f"its runner says {failure.cause}, which no runner can know")
    return msgspec.structs.replace(envelope, failure=failure)
