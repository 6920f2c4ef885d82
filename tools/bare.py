"""Run a make target on a bare Debian 12: only git and make, nothing else, and a fresh clone.

`nox -s bare -- demo` and `nox -s bare -- test`, as root. The machine is a debootstrap root in
namespaces of its own, entered by pivot_root: a plain chroot is not enough, buildah could not
remount its root there. When the target ends, every process and mount of it ends with it.

The network is this machine's, and so are its extra certificate authorities and the settings that
tell pip and uv where their indexes are. Only what is committed is tried.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SUITE: Final = "bookworm"
CACHE: Final = Path.home() / ".cache" / "pierhead" / f"{SUITE}.tar"
AUTHORITIES: Final = Path("usr/local/share/ca-certificates")
CLONE: Final = "root/pierhead"
# What may be told to the bare machine: how to get to the indexes, and nothing else.
PASSED_ON: Final = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "PIP_CERT",
    "PIP_INDEX_URL",
    "UV_DEFAULT_INDEX",
)
ENTER: Final = """
set -eu
root=$1; shift
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=0755 tmpfs run
mkdir -p .old
pivot_root . .old
umount --lazy /.old
rmdir /.old
cd /root/pierhead
exec "$@"
"""


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command of this machine that has to succeed."""
    subprocess.run(command, check=True, cwd=cwd)


def make_cache() -> None:
    """Build the bare root once and keep it as one archive."""
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pierhead-bare-") as scratch:
        root = Path(scratch) / "root"
        run("debootstrap", "--variant=minbase", "--include=git,make", SUITE, root)
        unfinished = CACHE.with_suffix(".part")
        run("tar", "--create", "--numeric-owner", "--file", unfinished, "--directory", root, ".")
        unfinished.replace(CACHE)


def make_root(root: Path) -> None:
    """Unpack the bare root and put this machine's network settings and a fresh clone into it."""
    root.mkdir()
    run("tar", "--extract", "--numeric-owner", "--file", CACHE, "--directory", root)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    if (Path("/") / AUTHORITIES).is_dir():
        shutil.copytree(Path("/") / AUTHORITIES, root / AUTHORITIES, dirs_exist_ok=True)
    run("git", "clone", "--quiet", "--no-local", f"file://{ROOT}", root / CLONE)


def environment() -> dict[str, str]:
    """Return the whole environment of the bare machine."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    fixed = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    return {**fixed, **passed}


def enter(root: Path, command: list[str]) -> int:
    """Run a command in the root, alone with its own processes and mounts."""
    own = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    inside = ["sh", "-c", ENTER, "enter", str(root), *command]
    return subprocess.run(["unshare", *own, *inside], env=environment(), check=False).returncode


def main() -> int:
    """Try one target and return how it ended."""
    parser = argparse.ArgumentParser(description="Run a make target on a bare Debian 12.")
    parser.add_argument("target", nargs="?", default="test")
    parser.add_argument("--then", default="", help="a shell line to run there afterwards")
    wanted = parser.parse_args()
    if os.geteuid() != 0:
        print("error: only root can make a bare machine\n\nhint: sudo make …", file=sys.stderr)
        return 3
    # An end that can be cleaned up after: what was started is killed, the root is removed.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    if not CACHE.exists():
        make_cache()
    with tempfile.TemporaryDirectory(prefix="pierhead-bare-") as scratch:
        root = Path(scratch) / "root"
        make_root(root)
        line = f"make {wanted.target}" + (f" && {wanted.then}" if wanted.then else "")
        return enter(root, ["sh", "-c", line])


if __name__ == "__main__":
    sys.exit(main())
