"""Does this machine have what builds? If not, the one line that installs it."""

import os
import shutil
import subprocess
from typing import Final

from pierhead.protocol.cli.speak import REFUSED, UNAVAILABLE, fail

# What builds, and the package that brings each on Debian and Ubuntu.
_PROGRAMS: Final = {"buildah": "buildah", "runc": "runc", "iptables": "iptables", "ip": "iproute2"}
# Without root, buildah needs these to have users and a network of its own.
_ROOTLESS: Final = {"newuidmap": "uidmap", "fuse-overlayfs": "fuse-overlayfs"}
_SEARCH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def require_builder() -> None:
    """Go on if this machine can build.

    Raises:
        CommandFailed: buildah is missing; what to type was said.
    """
    if shutil.which("buildah"):
        return
    packages = " ".join(_PROGRAMS.values())
    raise fail("buildah is not installed on this machine", install_line(packages), UNAVAILABLE)


def lacking(*, rootless: bool = False) -> tuple[str, ...]:
    """Return the packages that this machine needs before it can build."""
    wanted = {**_PROGRAMS, **_ROOTLESS} if rootless else _PROGRAMS
    return tuple(wanted[name] for name in wanted if shutil.which(name, path=_SEARCH) is None)


def can_install() -> bool:
    """Say whether this user can install packages here."""
    return os.geteuid() == 0 and shutil.which("apt-get", path=_SEARCH) is not None


def install(packages: tuple[str, ...]) -> None:
    """Install packages; where the lists of packages are too old for that, after renewing them.

    Raises:
        CommandFailed: apt-get could not.
    """
    wanted = ("-y", "--no-install-recommends", "install", *packages)
    done = _apt(*wanted)
    if done.returncode != 0:
        _apt("update")
        done = _apt(*wanted)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]
        raise fail(
            f"{' '.join(packages)} could not be installed: {said}", "apt-get update", REFUSED
        )


def _apt(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["apt-get", "-qq", *words],  # noqa: S607
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def install_line(packages: str) -> str:
    """Return the command that installs packages, as this user has to type it."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y --no-install-recommends {packages}"
