"""Can a control plane keep in its folders what it has to, and does one? Asked by who starts one."""

import fcntl
import os
from pathlib import Path
from typing import Final

from pierhead.server.disk import require_usable

LOCK: Final = "lock"  # in the data folder: held by its control plane, with the number of that


def require_folders(data: Path, config: Path) -> None:
    """Make the folders if need be, and see that they can be used.

    Raises:
        Unavailable: one cannot, and why (`storage-full` when there is no room).
    """
    require_usable(data, elsewhere="PIERHEAD_DATA=DIR")
    require_usable(config, elsewhere="PIERHEAD_CONFIG=DIR")


def holder_of(data: Path) -> int | None:
    """Return the control plane's process that holds a data folder; none: nobody does."""
    try:
        descriptor = os.open(data / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        return int(said) if said.isdigit() else None
    finally:
        os.close(descriptor)
    return None
