"""What keeps a machine from building when its programs come and go while the runner works.

They are as they were when the machine was last tried, or it has to be tried again: a runtime that
was removed or replaced would else be told as the failure of whatever step needs it first.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pierhead.protocol.programs import PACKAGES, install_line

# What tells a file from one that takes its place; none: there is no such program.
Sight: TypeAlias = Mapping[str, tuple[int, ...] | None]


def missing(seen: Sight, wanted: Sequence[str]) -> list[str]:
    """Return a sentence, with the remedy, for each wanted program that is not there."""
    return [_missing(name) for name in wanted if seen[name] is None]


def changed(before: Sight, now: Sight) -> str | None:
    """Say what is not as it was; what went away comes first. None: all is as it was."""
    other = [name for name in now if now[name] != before[name]]
    gone = [name for name in other if now[name] is None]
    if gone:
        return _missing(gone[0])
    return f"{other[0]} has changed: what it can do is tried first" if other else None


def _missing(name: str) -> str:
    return f"{name} is not installed: {install_line(PACKAGES[name])}"
