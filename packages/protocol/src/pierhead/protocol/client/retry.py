"""What is sent again, and for how long.

Every call of the protocol is replayable, so a lost answer is always a reason to ask again. Waits
grow in a doubling window and are drawn from all of it, so that many clients do not come back at
once.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from pierhead.protocol.client.failure import distrusted
from pierhead.protocol.errors import Unavailable

T = TypeVar("T")
FIRST_WINDOW_SECONDS: Final = 0.25
WINDOW_SECONDS_MAX: Final = 8.0


def retrying(seconds: float, *, through_full_disk: bool = True) -> AsyncRetrying:
    """Retry what is `Unavailable` until `seconds` have passed, then let the error out.

    Whoever shows a certificate that is not to be trusted is not asked again: that does not heal.
    `through_full_disk`: also when the other side's disk is full, which people should hear at once.
    """

    def again(error: BaseException) -> bool:
        if not isinstance(error, Unavailable) or distrusted(error) is not None:
            return False
        return through_full_disk or error.problem.slug != "storage-full"

    return AsyncRetrying(
        retry=retry_if_exception(again),
        wait=wait_random_exponential(multiplier=FIRST_WINDOW_SECONDS, max=WINDOW_SECONDS_MAX),
        stop=stop_after_delay(seconds),
        reraise=True,
    )


async def patiently(
    call: Callable[[], Awaitable[T]], seconds: float, *, through_full_disk: bool = True
) -> T:
    """Call until there is an answer; what is `Unavailable` for longer is let out.

    `through_full_disk`: as for `retrying`.
    """
    async for attempt in retrying(seconds, through_full_disk=through_full_disk):
        with attempt:
            return await call()
    raise AssertionError("retrying ends by a value or an error")
