"""A submit that is sent until there is an answer, and that does not stand still without a word."""

from collections.abc import Awaitable, Callable
from typing import Final

from pierhead.protocol.build import BuildView
from pierhead.protocol.cli.speak import tell
from pierhead.protocol.client.retry import patiently
from pierhead.protocol.problem import Problem

SUBMIT_SECONDS: Final = 60.0


async def submitted(call: Callable[[], Awaitable[BuildView]]) -> BuildView:
    """Call until the build is queued; why it is not yet is told once, quiet or not.

    Raises:
        Unavailable: it could not be queued for a minute.
    """
    told: set[str] = set()

    def say(problem: Problem) -> None:
        if problem.slug == "rate-limited" and problem.slug not in told:
            told.add(problem.slug)
            minute = f"trying again for {SUBMIT_SECONDS:.0f} s"
            tell(f"waiting   {problem.detail or problem.title}; {minute}")

    return await patiently(call, SUBMIT_SECONDS, through_full_disk=False, on_refusal=say)
