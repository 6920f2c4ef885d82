"""What keeps the control plane of `pierhead up` running, and whether it is to run."""

import os
from pathlib import Path

from pierhead.protocol.cli.service import Service


def service_of(data: Path, command: tuple[str, ...] = ()) -> Service:
    """Return the service of a data folder; `command` is needed by whoever starts it."""
    return Service(
        name="pierhead",
        description="pierhead control plane",
        command=command,
        folder=data,
        module="pierhead.router",
        user=os.geteuid() != 0,
    )
