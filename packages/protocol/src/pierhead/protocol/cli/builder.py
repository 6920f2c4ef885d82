"""Does this machine have what builds? If not, the one line that installs it."""

import os
import shutil
import subprocess
from typing import Final

from pierhead.protocol import programs
from pierhead.protocol.cli.speak import REFUSED, UNAVAILABLE, fail
from pierhead.protocol.programs import PACKAGES, SEARCH

# What has to be installed for builds; the rest is on every Debian and Ubuntu.
_PROGRAMS: Final = ("buildah", "runc", "iptables", "ip")
_ROOTLESS: Final = ("newuidmap", "fuse-overlayfs")


def require_builder() -> None:
    """Go on if this machine can build.

    Raises:
        CommandFailed: buildah is missing; what to type was said.
    """
    if shutil.which("buildah"):
        return
    packages = " ".join(PACKAGES[name] for name in _PROGRAMS)
    raise fail("buildah is not installed on this machine", install_line(packages), UNAVAILABLE)


def lacking(*, rootless: bool = False) -> tuple[str, ...]:
    """Return the packages that this machine needs before it can build."""
    wanted = (*_PROGRAMS, *_ROOTLESS) if rootless else _PROGRAMS
    return tuple(PACKAGES[name] for name in wanted if shutil.which(name, path=SEARCH) is None)


def can_install() -> bool:
    """Say whether this user can install packages here."""
    return os.geteuid() == 0 and shutil.which("apt-get", path=SEARCH) is not None


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
    return programs.install_line(packages, root=os.geteuid() == 0)
