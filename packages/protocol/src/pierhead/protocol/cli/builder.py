"""Does this machine have what builds? If not, the one line that installs it."""

import os
import shutil
from typing import Final

from pierhead.protocol.cli.speak import UNAVAILABLE, fail

_PACKAGES: Final = "buildah runc iptables iproute2"


def require_builder() -> None:
    """Go on if this machine can build.

    Raises:
        CommandFailed: buildah is missing; what to type was said.
    """
    if shutil.which("buildah"):
        return
    raise fail("buildah is not installed on this machine", install_line(_PACKAGES), UNAVAILABLE)


def install_line(packages: str) -> str:
    """Return the command that installs packages, as this user has to type it."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y --no-install-recommends {packages}"
