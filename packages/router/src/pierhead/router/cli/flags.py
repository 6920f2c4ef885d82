"""What the flags of `docker build` mean here: each is honoured, or refused with what to do instead.

Nothing here waits or prints a story; a value that cannot be meant ends the command.
"""

import os
import re
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from pierhead.protocol.cli.given import checked
from pierhead.protocol.cli.speak import USAGE, CommandFailed, fail
from pierhead.protocol.ids import RunnerName
from pierhead.protocol.plan import PLATFORMS_MAX, SHM_BYTES_MAX, HostEntry, PairName, Ulimit
from pierhead.protocol.platform import PlatformText, normalise_platform
from pierhead.router.domain.errors import Refused
from pierhead.router.domain.naming import TagName, parse_tag, project_from_folder

_LIMITS: Final = "limits belong to the machine that has them"
_CACHE: Final = "runners keep their cache by themselves; leave it out"
# What docker has and this release has not.
REFUSED: Final = {
    "--ssh": "give the key with --secret, and use it in the step that needs it",
    "--build-context": "put what you need into the context",
    "--cache-from": _CACHE,
    "--cache-to": _CACHE,
    "--provenance": "leave it out; pierhead builds show --json says where and how it was built",
    "--sbom": "leave it out, and scan the printed reference",
    "--attest": "leave it out; pierhead builds show --json says where and how it was built",
    "--check": "buildah has no checks; hadolint Dockerfile has",
    "--call": "buildah has no checks; hadolint Dockerfile has",
    "--squash": "build in several stages",
    "--stream": "only what has changed is sent in any case; leave it out",
    "--disable-content-trust": "name base images by digest: FROM NAME@sha256:...",
    "--isolation": "every build is isolated as far as its runner can",
    "--security-opt": "every build is isolated as far as its runner can",
    "--allow": "builds get no rights beyond their own",
    "--builder": "runners take builds by themselves; --on NAME asks for one",
    "--no-cache-filter": "--no-cache builds everything anew",
    "--annotation": "use --label",
    "--policy": "what may be built is the control plane's to say; leave it out",
    "--debug": "--progress plain shows the whole log",
    "-D": "--progress plain shows the whole log",
    "--memory": _LIMITS,
    "-m": _LIMITS,
    "--memory-swap": _LIMITS,
    "--cpu-shares": _LIMITS,
    "-c": _LIMITS,
    "--cpu-period": _LIMITS,
    "--cpu-quota": _LIMITS,
    "--cpuset-cpus": _LIMITS,
    "--cpuset-mems": _LIMITS,
    "--cgroup-parent": _LIMITS,
    "--where": "runners have no labels yet; --on NAME asks for one",
    "--want": "take the file from the image: -o type=tar,dest=FILE",
    "--scan": "scan the printed reference",
}
# What they ask for is so in any case.
_ALWAYS_SO: Final = frozenset(
    {"--push", "--rm", "--force-rm", "--compress", "--provenance=false", "--sbom=false"}
)
_SWITCHES: Final = frozenset(
    {"--push", "--load", "--pull", "--no-cache", "--quiet", "--rm", "--force-rm", "--compress"}
)
_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE: Final = re.compile(r"([0-9]{1,15})([bkmg]?)b?", re.I)
OutputKind: TypeAlias = Literal["oci", "docker", "tar"]


class Output(Struct, frozen=True):
    """A file that gets the image; `-` is stdout."""

    kind: OutputKind
    destination: str


def honoured(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without what is so anyway, switches written as switches.

    Raises:
        CommandFailed: a flag is not honoured; it was named, and what to do instead.
    """
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*kept, argument, *rest]
        flag, _, value = argument.partition("=")
        if flag in _SWITCHES and value in {"true", "false"}:
            argument = flag if value == "true" else ""
        if argument and argument not in _ALWAYS_SO:
            _refuse(flag)
            kept.append(argument)
    return kept


def _refuse(flag: str) -> None:
    if flag in REFUSED:
        raise fail(f"{flag} is not honoured", REFUSED[flag], USAGE)


def tag_of(text: str) -> TagName:
    """Return what `-t` names."""
    first, slash, name = text.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):  # docker's rule for hosts
        # The name would be taken, and the image would not be where its name says.
        hint = f"-t {name}, then skopeo copy the printed reference to {first}"
        raise fail(f"-t {text} names the registry {first}; images go to our own", hint, USAGE)
    try:
        return parse_tag(text)
    except Refused as error:
        raise fail(f"-t: {error}", error.hint, USAGE) from error


def project_of(said: str | None, names: Sequence[TagName], folder: str) -> str:
    """Return the project: what was said, or the tags' name, or one made from the folder's."""
    if len({name.project for name in names}) > 1:
        raise fail("all -t of one build have the same NAME", "-t web:1.2 -t web:latest", USAGE)
    if said:
        return said
    try:
        return names[0].project if names else project_from_folder(folder)
    except Refused as error:
        raise fail(str(error), error.hint, USAGE) from error


def pairs(option: str, texts: Sequence[str], *, from_environment: bool) -> dict[str, str]:
    """Return NAME=VALUE as a dictionary; a NAME alone is the environment's, or empty."""
    found = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not name:
            # What follows may be secret.
            raise fail(f"{option} has no name before the =", f"{option} NAME=VALUE", USAGE)
        checked(f"the name of {option}", name, PairName)
        if given:
            found[name] = value
        elif from_environment and name in os.environ:
            found[name] = os.environ[name]
        elif not from_environment:
            found[name] = ""
    return found


def host_entries(texts: Sequence[str]) -> tuple[str, ...]:
    """Return what `--add-host` says as NAME:ADDRESS; docker also writes NAME=ADDRESS."""
    found = []
    for text in texts:
        name, _, address = text.replace("=", ":", 1).partition(":")
        if address == "host-gateway":
            hint = "say an address that the runner's network can reach"
            what = "--add-host of host-gateway is not honoured: no build reaches its machine"
            raise fail(what, hint, USAGE)
        entry = f"{name}:{address.removeprefix('[').removesuffix(']')}"
        found.append(checked("--add-host", entry, HostEntry))
    return tuple(found)


def ulimits(texts: Sequence[str]) -> tuple[str, ...]:
    """Return what `--ulimit` says."""
    return tuple(checked("--ulimit", text, Ulimit) for text in texts)


def byte_size(text: str) -> int:
    """Return a size as docker writes it: 64m is 64 MiB."""
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2].lower()] if found else 0
    if not 64 * 1024 <= size <= SHM_BYTES_MAX:
        raise fail(f"--shm-size is 64k to 64g, not {text!r}", "--shm-size 256m", USAGE)
    return size


def network_of(text: str) -> Literal["default", "none"]:
    """Return the network of the steps."""
    if text in {"default", "none"}:
        return "none" if text == "none" else "default"
    hint = "leave it out: a build has a network of its own; --network none takes it away"
    raise fail(f"--network {text} is not honoured", hint, USAGE)


def platforms_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the platforms that are asked for, each once, in the order of the command line."""
    wanted = [part.strip() for text in texts for part in text.split(",")]
    found = tuple(dict.fromkeys(_platform(part) for part in wanted))
    if len(found) > PLATFORMS_MAX:
        text = f"--platform: {len(found)} platforms are too many for one build"
        raise fail(text, f"at most {PLATFORMS_MAX} at once", USAGE)
    return found


def _platform(text: str) -> str:
    return normalise_platform(*checked("--platform", text.lower(), PlatformText).split("/"))


def names_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the runners that `--on` names."""
    names = [name for text in texts for name in text.split(",") if name]
    return tuple(checked("--on", name, RunnerName) for name in names)


def outputs_of(texts: Sequence[str]) -> tuple[Output, ...]:
    """Return the files that `-o` asks for; pushing to the registry is so anyway."""
    return tuple(output for text in texts if (output := _output(text)) is not None)


def _output(text: str) -> Output | None:
    if text == "-":
        return Output("tar", "-")
    if "=" not in text:
        if text.endswith(".tar"):
            return Output("docker", text)
        raise _no_folder(text)
    said = dict(part.partition("=")[::2] for part in text.split(","))
    kind, destination = said.pop("type", ""), said.pop("dest", "")
    if kind in {"registry", "image"} and set(said) <= {"push"} and not destination:
        return None
    if kind == "local":
        raise _no_folder(destination or "DIR")
    if said:
        hint = "-o type=oci,dest=FILE"
        raise fail(f"-o {next(iter(said))}=... is not honoured", hint, USAGE)
    if kind not in {"oci", "docker", "tar"}:
        hint = "-o type=oci,dest=FILE, or type=docker, or type=tar"
        raise fail(f"-o type={kind} is not honoured", hint, USAGE)
    if not destination:
        raise fail(f"-o type={kind} needs a file", f"-o type={kind},dest=FILE", USAGE)
    return Output(kind, destination)  # type: ignore[arg-type]


def _no_folder(path: str) -> CommandFailed:
    hint = f"-o type=tar,dest=- . | tar -x -C {path}"
    return fail("-o into a folder is not honoured", hint, USAGE)
