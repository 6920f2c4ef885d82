"""Runs as a script of its own, before a step's container is made: looks at what it would mount.

buildah resolves the source of `RUN --mount` in the root that it sees itself, so a link in an image,
in the context or in a cache can lead anywhere (CVE-2024-1753, CVE-2024-9675, CVE-2024-11218). What
a source was called says nothing. So this looks at what is there now: which file system it is, and
which folder of it. Only what a step may mount passes: the tree of a stage or an image of this
build's own store, a file or folder of the context, a cache, and the few files that buildah writes.
Cgroups become read-only: a step that freezes itself could not be ended.

What it finds is noted in a file that no step can see, for whoever says why a build failed: what the
output says of it, a step could say as well. adapters/isolation.py reads the file.

Usage: guard.py PLACES-AS-JSON-FILE ARGUMENTS-OF-RUNC...
"""

import json
import os
import re
import stat
import sys
from typing import NamedTuple

# What buildah writes for each container, in the folder that it makes for it.
WRITTEN = ("hosts", "hostname", "resolv.conf", "run/.containerenv", "run/secrets")
# In the folder of notes: of the last step only.
NOTE = "step.json"
RUNC_LOG = "runc.log"
ELF = b"\x7fELF"
HEADER_BYTES = 20  # of an ELF file, up to the machine that it is for


class Content(NamedTuple):
    """What is behind a path: a folder or file of a file system, however it was reached."""

    device: str  # "254:0"
    path: str  # within the file system
    kind: str  # "overlay"
    options: str  # of the file system


class Places(NamedTuple):
    """What steps may mount, as paths that the build cannot change."""

    storage: str
    containers: str
    context: str
    caches: str
    notes: str  # where this may write


def main(arguments: list[str]) -> int:
    """Say by the exit code whether the container may be made."""
    with open(arguments[0], encoding="utf-8") as file:
        places = Places(**json.load(file))
    with open(f"{places.notes}/{NOTE}", "w", encoding="utf-8") as note:
        open(f"{places.notes}/{RUNC_LOG}", "w", encoding="utf-8").close()
        try:
            found = look(places, option(arguments[1:], "--bundle"))
        except (OSError, ValueError, KeyError, StopIteration) as error:
            found = {"fault": repr(error)[:1000]}
            print(f"pierhead cannot look at the mounts: {error!r}", file=sys.stderr)
        json.dump(found, note)
    return 0 if found.keys() <= {"foreign"} else 1


def look(places: Places, bundle: str) -> dict[str, object]:
    """Return what was found; whoever may not mount something is told so, too."""
    with open(f"{bundle}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    mounts = config.get("mounts", [])
    for mount in mounts:
        if is_bind(mount) and not allowed(mount["source"], places, bundle):
            target = str(mount.get("destination", ""))[:200]
            text = f"pierhead refuses the mount at {target}: its source is a link that leads out"
            print(text, file=sys.stderr)
            return {"refused": target}
    for mount in mounts:
        if mount.get("type") in ("cgroup", "cgroup2"):
            mount["options"] = read_only(mount.get("options") or [])
    with open(f"{bundle}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    return {"foreign": is_foreign(config, bundle)}


def is_foreign(config: dict[str, dict[str, object]], bundle: str) -> bool:
    """Say whether the program of a step is for another kind of machine. Ends in the step's root."""
    own = header("/proc/self/exe")
    root, process = config.get("root", {}), config.get("process", {})
    arguments = process.get("args")
    if not isinstance(arguments, list) or not arguments:
        return False
    os.chroot(os.path.join(bundle, str(root["path"])))
    os.chdir("/")
    found = next(filter(None, map(header, candidates(str(arguments[0]), process))), b"")
    return found.startswith(ELF) and found[18:] != own[18:]


def candidates(program: str, process: dict[str, object]) -> list[str]:
    """Return where runc would look for a program."""
    if "/" in program:
        return [os.path.join(str(process.get("cwd", "/")), program)]
    variables = process.get("env")
    assert isinstance(variables, list | None)
    paths = [text[5:] for text in variables or () if str(text).startswith("PATH=")]
    return [f"{folder or '.'}/{program}" for path in paths for folder in path.split(":")]


def header(path: str) -> bytes:
    """Return the beginning of a file that is one; a pipe or a device of an image is not opened."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:
                return file.read(HEADER_BYTES)
    except (OSError, ValueError):  # a name with a NUL
        pass
    return b""


def read_only(options: list[str]) -> list[str]:
    """Return the options of a mount that is only looked at: a step could freeze itself by it."""
    return [*(option for option in options if option not in ("rw", "ro")), "ro"]


def option(arguments: list[str], name: str) -> str:
    """Return the value of an option of runc's."""
    return arguments[arguments.index(name) + 1]


def is_bind(mount: dict[str, object]) -> bool:
    """Say whether a mount shows something that is there already."""
    options = mount.get("options") or ()
    assert isinstance(options, list | tuple)
    return mount.get("type") == "bind" or "bind" in options or "rbind" in options


def allowed(source: str, places: Places, bundle: str) -> bool:
    """Say whether a step may see what is behind a path."""
    content = content_of(source)
    if content.kind == "overlay":
        # A mounted container of this build: its upper folder is in the build's own store. With very
        # many layers buildah's paths are relative to that.
        own = (
            rf"(?:^|,)upperdir=(?:{re.escape(places.storage)}/overlay/)?[0-9a-f]{{64}}/diff(?:,|$)"
        )
        return re.search(own, content.options) is not None
    return (
        is_within(content, content_of(places.context), 0)
        or is_within(content, content_of(places.containers), 3)  # ID/userdata/FILE
        or any(is_within(content, content_of(folder), 1) for folder in caches_in(places.caches))
        or any(is_within(content, content_of(f"{bundle}/{name}"), 0) for name in written(bundle))
    )


def is_within(content: Content, folder: Content, depth: int) -> bool:
    """Say whether it lies at least so deep below the folder."""
    if content.device != folder.device:
        return False
    if content.path != folder.path and not content.path.startswith(folder.path.rstrip("/") + "/"):
        return False
    below = content.path[len(folder.path) :].strip("/")
    return len(below.split("/") if below else ()) >= depth


def caches_in(folder: str) -> list[str]:
    """Return the folders of caches, by whatever name this release of buildah has for them."""
    names = [name for name in os.listdir(folder) if name.startswith("buildah-cache")]
    return [f"{folder}/{name}" for name in names if not os.path.islink(f"{folder}/{name}")]


def written(bundle: str) -> list[str]:
    """Return which of the files that buildah writes are there."""
    return [name for name in WRITTEN if os.path.lexists(f"{bundle}/{name}")]


def content_of(path: str) -> Content:
    """Return what is behind a path, by the mount that its descriptor belongs to."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="utf-8") as info:
            number = next(line.split()[1] for line in info if line.startswith("mnt_id:"))
        seen_at = os.readlink(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        fields = next(line.split() for line in mounts if line.split(" ", 1)[0] == number)
    # proc_pid_mountinfo(5): id, parent, device, root, mount point, options, tags..., -, kind, ...
    device, root, point = fields[2], plain(fields[3]), plain(fields[4])
    kind, _, options = fields[fields.index("-") + 1 :][:3]
    below = os.path.relpath(seen_at, point)
    return Content(device, os.path.normpath(os.path.join(root, below)), kind, plain(options))


def plain(field: str) -> str:
    """Return a path as it is: mountinfo writes spaces and a few other characters as octal."""
    parts = field.split("\\")
    return parts[0] + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
