"""Which package of Debian and Ubuntu brings a program that builds need, and what installs it."""

from collections.abc import Mapping
from typing import Final

PACKAGES: Final[Mapping[str, str]] = {
    "buildah": "buildah",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "newuidmap": "uidmap",
    "newgidmap": "uidmap",
    "fuse-overlayfs": "fuse-overlayfs",
}
# As root, for isolated builds.
ISOLATING: Final = ("buildah", "runc", "iptables", "ip", "unshare", "nsenter")
# Without root, buildah needs these to have users of its own.
ROOTLESS: Final = ("buildah", "newuidmap", "newgidmap", "unshare")
# Where they are looked for: not everybody's PATH has the folders of root's programs.
SEARCH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def install_line(packages: str, *, root: bool = True) -> str:
    """Return the command that installs packages, as somebody who is root, or is not, types it."""
    sudo = "" if root else "sudo "
    return f"{sudo}apt-get install -y --no-install-recommends {packages}"
