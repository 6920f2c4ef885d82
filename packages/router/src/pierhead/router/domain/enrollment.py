"""A join code lets one machine in, once, within its lifetime.

The machine that used it may ask again with the same nonce, since its answer may have been lost.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pierhead.router.domain.errors import JoinCodeUsed, NotAllowed, Unauthenticated

LIFETIME: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A join code as stored: only the hash of its secret."""

    runner: str
    expires_at: datetime
    spent_by: str | None = None  # the nonce of the machine that used it


def spend(code: Code | None, name: str | None, nonce: str, *, now: datetime) -> Code:
    """Return the code as used by `nonce`. Every check comes before the code is spent.

    Raises:
        Unauthenticated: no such code, or its time is over.
        NotAllowed: the code was made for another name; it stays good.
        JoinCodeUsed: another machine used it.
    """
    hint = (
        "make a new one: pierhead add NAME --builds   (joined before: pierhead nodes remove NAME)"
    )
    if code is None:
        raise Unauthenticated("this join code is not known here", hint=hint)
    if name not in {None, code.runner}:
        raise NotAllowed(f"this join code is for {code.runner}", hint=f"use --name {code.runner}")
    if code.spent_by == nonce:
        return code
    if code.spent_by is not None:
        raise JoinCodeUsed("this join code was used by another machine", hint=hint)
    if now >= code.expires_at:
        raise Unauthenticated("this join code has expired", hint=hint)
    return replace(code, spent_by=nonce)
