"""What one build runs in: which programs stand before buildah, and what they let it see.

Outermost comes the network namespace, then a process and a mount namespace that die as one
(`--kill-child`: whatever a step ignores and whichever session it went to), then a root of its own
(room.py says why). Limits are not here: see cgroup.py.
"""

import ipaddress
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pierhead.runner.adapters.cgroup import Cgroup
from pierhead.runner.adapters.guard import NOTE, RUNC_LOG
from pierhead.runner.adapters.process import ENVIRONMENT
from pierhead.runner.domain.failure import Witness
from pierhead.runner.domain.invocation import RUNTIME, SECRETS_FOLDER, Store

_ROOM: Final = Path(__file__).with_name("room.py")
_GUARD: Final = Path(__file__).with_name("guard.py")
# In the room, the same for every build, so that the program between buildah and runc is constant.
_OURS: Final = os.path.dirname(RUNTIME)
_NOTES: Final = f"{_OURS}/notes"
NOTES_BYTES_MAX: Final = 64 * 1024
_WAITS: Final = "waits"  # there until the step has begun: to remove it takes no disk
BEGAN: Final = "began"  # written when buildah was about to begin
_GONE: Final = "gone"  # runc could not be run, be it to ask how a step is
# `create` prints into each of a step's two pipes before the step does, `delete` when both were read
# to their end: by these marks domain/voice.py tells who said what. No step sees the word, nor what
# guard and runc note of it: a runc that is missing or broken says nothing, and no step began.
_RUNTIME: Final = f"""\
#!/bin/sh
PATH={ENVIRONMENT["PATH"]}
read -r voice < {_OURS}/word
for word in "$@"; do
  case "$word" in
    create)
      : > {_NOTES}/{_WAITS}
      {_OURS}/python -I -S {_OURS}/guard.py {_OURS}/places.json "$@" || exit 1
      printf '\\036%sbegin\\036' "$voice"
      printf '\\036%sbegin\\036' "$voice" >&2
      exec runc --log {_NOTES}/{RUNC_LOG} --log-format json "$@" ;;
    delete)
      printf '\\036%send\\036' "$voice" >&2
      break ;;
    start)
      runc "$@" || exit 1
      rm -f {_NOTES}/{_WAITS}
      exit 0 ;;
    state)
      runc "$@"
      code=$?
      case $code in 126 | 127) : > {_NOTES}/{_GONE} ;; esac
      exit $code ;;
    kill)
      break ;;
  esac
done
exec runc "$@"
"""
_CGROUPS: Final = "/sys/fs/cgroup"
_OWN: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS: Final = (
    "ca-certificates",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "passwd",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",  # not private/, which is beside it
    "ssl/openssl.cnf",
)
# Where netavark keeps its networks, with a lock that has to be written; a build makes none.
_NETWORKS: Final = "networks"
_CONTAINERS: Final = Path("/etc/containers")
_REGISTRIES: Final = _CONTAINERS / "registries.conf.d"
_LAST: Final = "zz-pierhead-relay.conf"  # of two settings for a registry, the last one counts
_DOCKER_HUB: Final = 'unqualified-search-registries = ["docker.io"]\n'
# Of /proc, what changes the machine or tells of it; runc takes the same from steps. The rest has to
# be writable: runc sets the limits of a step's process there.
_FIXED: Final = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_HIDDEN: Final = ("kcore", "keys", "kmsg", "sched_debug", "timer_list", "timer_stats")
_DEVICES: Final = ("full", "null", "random", "tty", "urandom", "zero")
# systemd-resolved keeps here what it asks itself; /etc/resolv.conf then names only a loopback.
_RESOLVERS: Final = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))

Entry = tuple[str, str, str]  # what, from where, to where


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The root that a build sees."""

    folder: Path  # an empty one, to mount it on
    store: Store
    work: Path  # of the attempt, with its Dockerfile as buildah gets it
    context: Path  # below it: what steps may mount
    notes: Path  # what guard and runc say of the last step
    temporary: Path  # its /var/tmp: layers on their way, and cache mounts
    word: str  # marks where the output of a step begins and ends
    secrets: bool = False  # they come on the command's input
    registries: str = ""  # settings of where base images are, beside the machine's

    def entries(self, cgroup: Cgroup) -> list[Entry]:
        """Return what is in it."""
        return [
            *(_system(place) for place in _SYSTEM if os.path.lexists(place)),
            *(("setting", path, path) for path in _settings()),
            *_registries(),
            *([("text", self.registries, str(_REGISTRIES / _LAST))] if self.registries else []),
            ("text", resolvers() or "", "/etc/resolv.conf"),
            ("proc", "", "/proc"),
            *(("ro", path, path) for path in _of_proc(_FIXED)),
            *(("ro", os.devnull, path) for path in _of_proc(_HIDDEN)),
            ("sysfs", "", "/sys"),
            *_cgroup_entries(cgroup),
            # Devices can be used all the same; their modes and owners are the machine's.
            *(("ro", f"/dev/{name}", f"/dev/{name}") for name in _DEVICES),
            ("devpts", "", "/dev/pts"),
            ("tmpfs", "", "/dev/shm"),  # noqa: S108 - of the room, not ours
            ("link", "/proc/self/fd", "/dev/fd"),
            ("text", "", "/root/.keep"),
            ("text", "", "/run/.keep"),
            ("text", "", "/tmp/.keep"),  # noqa: S108 - of the room, not ours
            ("rw", str(self.temporary), "/var/tmp"),  # noqa: S108 - of the room, not ours
            *([("secrets", "", SECRETS_FOLDER)] if self.secrets else []),
            *(("rw", path, path) for path in (self.store.root, self.store.run, self.store.runtime)),
            ("ro", self.store.ignore, self.store.ignore),
            ("ro", self.store.policy, self.store.policy),
            ("ro", str(self.work), str(self.work)),
            *self._runtime(),
        ]

    def _runtime(self) -> Iterable[Entry]:
        """Put the guard between buildah and runc, with a Python to run it (guard.py says why)."""
        python = os.path.realpath(sys.executable)
        if not python.startswith("/usr/"):
            yield ("ro", sys.base_prefix, sys.base_prefix)
        places = {
            "storage": self.store.root,
            "containers": self.store.containers,
            "context": str(self.context),
            "caches": "/var/tmp",  # noqa: S108 - of the room, not ours
            "notes": _NOTES,
        }
        yield ("rw", str(self.notes), _NOTES)
        yield ("link", python, f"{_OURS}/python")
        yield ("ro", str(_GUARD), f"{_OURS}/guard.py")
        yield ("text", json.dumps(places), f"{_OURS}/places.json")
        yield ("text", self.word + "\n", f"{_OURS}/word")
        yield ("program", _RUNTIME, RUNTIME)


def enter(network: Path, room: Room, cgroup: Cgroup) -> list[str]:
    """Return what stands before a command to isolate it."""
    inside = json.dumps(room.entries(cgroup))
    python = [sys.executable, "-I", "-S", str(_ROOM), str(room.folder), inside]
    return ["nsenter", f"--net={network}", *_OWN, *python]


def witness_of(notes: Path) -> Witness:
    """Return what guard and runc noted of the last step; nothing, when there was none."""
    try:
        said = json.loads(_text(notes / NOTE) or "{}")
        lines = [json.loads(line) for line in _text(notes / RUNC_LOG).splitlines()]
        return Witness(
            refused=said.get("refused"),
            foreign=said.get("foreign", False),
            fault=said.get("fault"),
            runc=str(lines[-1].get("msg", "")) if lines else "",
            began=not (notes / _WAITS).exists(),
            gone=(notes / _GONE).exists(),
        )
    except (ValueError, AttributeError) as error:
        return Witness(fault=f"the notes of guard and runc cannot be read: {error}")


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(NOTES_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def own_processes(registries: Path | None = None) -> list[str]:
    """Return what stands before a command on a machine that cannot isolate: it dies as one.

    `registries`: a file with settings of where base images are, in the place of the machine's.
    """
    settings = ["env", f"CONTAINERS_REGISTRIES_CONF={registries}"] if registries else []
    return [*settings, *(_OWN if os.geteuid() == 0 else ("buildah", "unshare", *_OWN))]


def registries_file(folder: Path, registries: str) -> Path:
    """Write settings of where base images are, for a build that has no root of its own."""
    file = folder / "registries.conf"
    file.write_text(_DOCKER_HUB + registries)
    return file


def resolvers() -> str | None:
    """Return the first resolv.conf with a resolver that a build can reach: none on a loopback."""
    for file in _RESOLVERS:
        try:
            text = file.read_text()
        except OSError:
            continue
        if any(_is_reachable(line.split()) for line in text.splitlines()):
            return text
    return None


def _is_reachable(words: list[str]) -> bool:
    if len(words) < 2 or words[0] != "nameserver":
        return False
    try:
        return not ipaddress.ip_address(words[1].partition("%")[0]).is_loopback
    except ValueError:
        return False


def _system(place: str) -> Entry:
    if os.path.islink(place):
        return ("link", os.readlink(place), place)
    return ("ro", place, place)


def _settings() -> Iterable[str]:
    """Yield what a build sees of /etc; the folders of containers' settings can be written to.

    Any of it may be removed before the build sees it: room.py then leaves it out.
    """
    for name in _SETTINGS:
        if os.path.exists(f"/etc/{name}"):
            yield f"/etc/{name}"
    for folder in (_CONTAINERS, _REGISTRIES):
        for path in _listed(folder):
            if path.name != _NETWORKS and path != _REGISTRIES:
                yield str(path)


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder of settings; nothing when there is none."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _of_proc(names: Iterable[str]) -> Iterable[str]:
    return (f"/proc/{name}" for name in names if os.path.exists(f"/proc/{name}"))


def _registries() -> Iterable[Entry]:
    """Let `FROM name` mean Docker Hub, as in docker, unless the settings here say otherwise."""
    more = (file for file in _listed(_REGISTRIES) if file.suffix == ".conf")
    if not any(map(_names_registries, (_CONTAINERS / "registries.conf", *more))):
        yield ("text", _DOCKER_HUB, str(_REGISTRIES / "pierhead.conf"))


def _names_registries(file: Path) -> bool:
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    return any(line.lstrip().startswith("unqualified-search-registries") for line in lines)


def _cgroup_entries(cgroup: Cgroup) -> Iterable[Entry]:
    """Only the build's own cgroups, where runc looks for the roots of the hierarchies."""
    if cgroup.unified:
        yield ("rw", str(cgroup.folders[0] / "run"), _CGROUPS)
        return
    yield ("tmpfs", "", _CGROUPS)
    for hierarchy in sorted(Path(_CGROUPS).iterdir()):
        if hierarchy.is_symlink():
            yield ("link", os.readlink(hierarchy), str(hierarchy))
        elif (hierarchy / cgroup.name).is_dir():
            yield ("rw", str(hierarchy / cgroup.name / "run"), str(hierarchy))
