"""Runs as a script of its own: gives a build a root of its own, then becomes the command.

A step's mounts are resolved by buildah, outside the step's container, in the root that buildah
itself sees (CVE-2024-1753, open in Debian 12's 1.28). guard.py refuses those that lead out. Should
one get past it, or a fault be of another kind, then buildah sees a root in which there is little to
be had: the system's programs, read-only, and the folders of the build's own project.

Must be called in a mount and process namespace made for it. What the root holds is said by the
caller; adapters/isolation.py has the list. Secrets come on the input, as one JSON document, and are
kept in memory that is never written to a disk and ends with the build's mount namespace.
Usage: room.py FOLDER ENTRIES-AS-JSON COMMAND...
"""

import base64
import ctypes
import json
import os
import sys

_libc = ctypes.CDLL(None, use_errno=True)
# linux/mount.h
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC = 1, 2, 4, 8, 32, 4096, 16384
DETACH = 2
ROOT_BYTES = "64m"  # /tmp, /run and /etc of the root; memory, charged to the build


def main(arguments: list[str]) -> None:
    """Make the root, enter it, become the command."""
    room, entries, command = arguments[0], json.loads(arguments[1]), arguments[2:]
    mount("tmpfs", room, "tmpfs", NOSUID, f"mode=755,size={ROOT_BYTES}")
    for kind, source, target in entries:
        enter(kind, source, room + target)
    os.chdir(room)
    # pivot_root(2): with both names the same, the old root is on top and can be taken off.
    pivot = _libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b".")
    check(pivot, "pivot_root", room)
    unmount(".", DETACH)
    os.chdir("/")
    os.execvp(command[0], command)  # noqa: S606 - no shell is what is wanted here


_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "armv7l": 218}


def enter(kind: str, source: str, target: str) -> None:
    """Put one thing into the room."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if kind == "link":
        os.symlink(source, target)
    elif kind in ("text", "program"):
        with open(target, "w", encoding="utf-8") as file:
            file.write(source)
        os.chmod(target, 0o755 if kind == "program" else 0o644)
    elif kind == "secrets":
        keep_secrets(target)
    elif kind == "setting":
        show_setting(source, target)
    elif kind in ("proc", "sysfs", "tmpfs", "devpts"):
        os.makedirs(target, exist_ok=True)
        flags = RDONLY if kind == "sysfs" else 0
        mount(kind, target, kind, flags | NOSUID | NOEXEC, None)
    else:
        bind(source, target, read_only=kind == "ro")


def keep_secrets(folder: str) -> None:
    """Write what comes on the input to files in memory, and leave an empty input to the command."""
    os.makedirs(folder)
    # A ramfs, other than a tmpfs, has no way to the swap.
    mount("ramfs", folder, "ramfs", NOSUID | NODEV | NOEXEC, "mode=700")
    for name, value in json.load(sys.stdin.buffer).items():
        descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64decode(value))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def show_setting(source: str, target: str) -> None:
    """Show one of the machine's settings; whoever removes it just now removes it here, too."""
    try:
        bind(source, target, read_only=True)
    except (FileNotFoundError, NotADirectoryError):
        # What it would have been shown on: an empty file would say that there is nothing to it.
        (os.rmdir if os.path.isdir(target) else os.unlink)(target)


def bind(source: str, target: str, *, read_only: bool) -> None:
    """Show what is at `source` at `target`; what is there, is hidden."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(source, target, None, BIND | REC, None)
    if read_only:
        mount("none", target, None, BIND | REMOUNT | RDONLY, None)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    """Call mount(2)."""
    done = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    check(done, "mount", target)


def unmount(target: str, flags: int = 0) -> None:
    """Call umount2(2)."""
    check(_libc.umount2(os.fsencode(target), flags), "umount", target)


def check(result: int, what: str, where: str) -> None:
    """Turn a failed call into an error."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", where)


if __name__ == "__main__":
    main(sys.argv[1:])
