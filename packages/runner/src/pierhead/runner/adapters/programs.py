"""The programs that build, as they are on this machine now: a few calls of stat, no process."""

import os
import shutil
from collections.abc import Sequence

from pierhead.protocol.programs import ISOLATING, ROOTLESS
from pierhead.runner.adapters.process import ENVIRONMENT
from pierhead.runner.domain.programs import Sight


def wanted() -> Sequence[str]:
    """Return the names of the programs that this user's builds need."""
    return ISOLATING if os.geteuid() == 0 else ROOTLESS


def seen() -> Sight:
    """Return what these programs are."""
    return {name: _seen(name) for name in wanted()}


def _seen(name: str) -> tuple[int, ...] | None:
    path = shutil.which(name, path=ENVIRONMENT["PATH"])
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
