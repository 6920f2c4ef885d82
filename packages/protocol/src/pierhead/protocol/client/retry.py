"""What is sent again, and for how long.

Every call of the protocol is replayable, so a lost answer is always a reason to ask again. Waits
grow in a doubling window and are drawn from all of it, so that many clients do not come back at
once.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from pierhead.protocol.client.failure import distrusted
from pierhead.protocol.errors import PierheadError, Unavailable
from pierhead.protocol.problem import Problem

T = TypeVar("T")
FIRST_WINDOW_SECONDS: Final = 0.25
WINDOW_SECONDS_MAX: Final = 8.0


def retrying(
    seconds: float,
    *,
    through_full_disk: bool = True,
    on_refusal: Callable[[Problem], None] | None = None,
) -> AsyncRetrying:
    """Retry what is `Unavailable` until `seconds` have passed, then let the error out.

    Whoever shows a certificate that is not to be trusted is not asked again: that does not heal.
    `through_full_disk`: also when the other side's disk is full, which people should hear at once.
    `on_refusal` hears of each problem because of which is waited.
    """

    def again(error: BaseException) -> bool:
        if not isinstance(error, Unavailable) or distrusted(error) is not None:
            return False
        return through_full_disk or error.problem.slug != "storage-full"

    def before_wait(state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        if on_refusal is not None and isinstance(error, PierheadError):
            on_refusal(error.problem)

    return AsyncRetrying(
        retry=retry_if_exception(again),
        wait=wait_random_exponential(multiplier=FIRST_WINDOW_SECONDS, max=WINDOW_SECONDS_MAX),
        stop=stop_after_delay(seconds),
        before_sleep=before_wait,
        reraise=True,
    )


async def patiently(
    call: Callable[[], Awaitable[T]],
    seconds: float,
    *,
    through_full_disk: bool = True,
    on_refusal: Callable[[Problem], None] | None = None,
) -> T:
    """Call until there is an answer; what is `Unavailable` for longer is let out.

    The rest: as for `retrying`.
    """
    again = retrying(seconds, through_full_disk=through_full_disk, on_refusal=on_refusal)
    async for attempt in again:
        with attempt:
            return await call()
    raise AssertionError("retrying ends by a value or an error")
