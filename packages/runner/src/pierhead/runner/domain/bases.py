"""Which registries a Dockerfile's base images are of, and what buildah has to be told of them.

buildah is told that each of them is at an address of the runner's own, which asks the control plane
for what it is asked. Its settings have no word for "all registries", so they are read out of the
Dockerfile. One that is not found here, because only buildah can tell what a variable is, is asked
by buildah itself, without any login.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pierhead.runner.domain.dockerfile import Instruction, instructions

DOCKER_HUB: Final = "docker.io"
HOSTS_MAX: Final = 64
# Longer than any name of an image can be. The rest of a variable's value is of no use here, and a
# few lines of a Dockerfile could double it until nothing is left of the machine's memory.
_VALUE_MAX: Final = 1024
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?(:[0-9]{1,5})?\Z")
_VARIABLE: Final = re.compile(
    r"\$(?:(?P<bare>\w+)|\{(?P<name>\w+)(?:(?P<how>:?[-+])(?P<word>[^{}]*))?\})"
)
_FROM_FLAG: Final = re.compile(r"(?:^|\s)--from=(\S+)", re.I)
_MOUNT: Final = re.compile(r"(?:^|\s)--mount=(\S+)", re.I)
_USER: Final = "pierhead"
_ACCEPT: Final = {"type": "insecureAcceptAnything"}
# containers-transports(5), but for registries and the store that earlier stages are in.
_OF_THE_MACHINE: Final = (
    "atomic",
    "dir",
    "docker-archive",
    "docker-daemon",
    "oci",
    "oci-archive",
    "ostree",
    "sif",
    "tarball",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRefusal:
    """Why the control plane did not give something of a base image."""

    image: str
    message: str
    hint: str | None = None


def registry_of(image: str) -> str:
    """Return the registry that an image is of, as its name says it."""
    first, slash, _ = image.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named else DOCKER_HUB


def registries_named(dockerfile: str, build_args: Mapping[str, str]) -> tuple[str, ...]:
    """Return the registries of all images that a Dockerfile names: Docker Hub always."""
    found = {DOCKER_HUB: None}
    for image in _images(dockerfile, build_args):
        host = registry_of(image)
        if _HOST.match(host):
            found[host] = None
    return tuple(found)[:HOSTS_MAX]


def image_of_the_machine(dockerfile: str, build_args: Mapping[str, str]) -> str | None:
    """Return an image that is named as a file of the machine that builds; none: there is none.

    buildah would open it before it asks `registries_alone`; one whose name only buildah can tell
    is refused by that.
    """
    for image in _images(dockerfile, build_args):
        transport, colon, _ = image.partition(":")
        if colon and transport in _OF_THE_MACHINE:  # without one it is a stage
            return image
    return None


def registries_conf(hosts: Sequence[str], address: str) -> str:
    """Return containers-registries.conf(5): each host is a folder at one address.

    The number of a host is its place in `hosts`: some of their names cannot be part of a path.
    """
    tables = [
        f'[[registry]]\nprefix = "{host}"\nlocation = "{address}/r{number}"\ninsecure = true\n'
        for number, host in enumerate(hosts)
    ]
    return "\n".join(tables)


def registries_alone(policy: str | None) -> str:
    """Return containers-policy.json(5) that lets base images come from registries alone.

    What else an image can be read from is a file or a program of the runner's machine. `policy` is
    the machine's own, which goes on to hold for registries; none: they may all be asked.
    """
    try:
        said: dict[str, Any] = json.loads(policy) if policy is not None else {"default": [_ACCEPT]}
        others = {name: {"": [{"type": "reject"}]} for name in _OF_THE_MACHINE}
        return json.dumps({**said, "transports": {**said.get("transports", {}), **others}})
    except (ValueError, TypeError, AttributeError):
        return policy or ""  # buildah says what is wrong with it


def login_file(address: str, password: str) -> bytes:
    """Return containers-auth.json(5) for one address."""
    return json.dumps({"auths": {address: {"auth": _pair(password)}}}).encode()


def authorization(password: str) -> str:
    """Return what buildah then sends."""
    return f"Basic {_pair(password)}"


def _pair(password: str) -> str:
    return base64.b64encode(f"{_USER}:{password}".encode()).decode()


def bases_of_stages(dockerfile: str, build_args: Mapping[str, str]) -> tuple[str, ...]:
    """Return what each stage begins with, as it is written: an image, or an earlier stage."""
    return tuple(name for name, begins in _named(dockerfile, build_args) if begins)


def _images(dockerfile: str, build_args: Mapping[str, str]) -> Iterator[str]:
    """Yield what may be an image; names of stages among them do no harm."""
    return (name for name, _ in _named(dockerfile, build_args))


def _named(dockerfile: str, build_args: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield what images and stages are called, and whether a stage begins with it."""
    values: dict[str, str] = {}
    for one in instructions(dockerfile):
        words = one.words
        match words[0]:
            case "ARG":
                for word in words[1:]:
                    name, _, default = word.partition("=")
                    values[name] = build_args.get(name, _expanded(_bare(default), values))
            case "ENV":
                for name, equals, value in (word.partition("=") for word in words[1:]):
                    if equals:
                        values[name] = _expanded(_bare(value), values)
            case "FROM" if len(words) > 1:
                yield _expanded(words[1], values), True
            case "COPY" | "ADD" | "RUN":
                yield from ((_expanded(image, values), False) for image in _of_flags(one))


def _of_flags(one: Instruction) -> Iterable[str]:
    """Yield what `--from=` and `--mount=from=` name."""
    if one.words[0] == "RUN":
        for mount in _MOUNT.findall(one.text):
            for option in mount.split(","):
                key, _, value = option.partition("=")
                if key.lower() == "from":
                    yield value
        return
    yield from _FROM_FLAG.findall(one.text)


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Return the beginning of a text with its variables in their places.

    What is not known stays as it is.
    """

    def value(found: re.Match[str]) -> str:
        name, how, word = found["bare"] or found["name"], found["how"] or "", found["word"] or ""
        known = values.get(name)
        has = bool(known) if how.startswith(":") else known is not None
        if how.endswith("+"):
            return word if has else ""
        if how.endswith("-"):
            return known if has and known is not None else word
        return known if known is not None else found[0]

    parts, size, at = list[str](), 0, 0
    for found in _VARIABLE.finditer(text):
        parts += (text[at : found.start()], value(found))
        at, size = found.end(), size + len(parts[-2]) + len(parts[-1])
        if size > _VALUE_MAX:
            break
    return "".join([*parts, text[at:]])[:_VALUE_MAX]


def _bare(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
