"""What an importer asks for: the request, its context and its secrets, and the policy.

All are values: frozen, keyword-only, comparable. Nothing here reads a disk or a network except the
two constructors of `Secret` that say so.
"""

import hmac
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal, NoReturn, Self, TypeAlias


class Secret:
    """A value that never prints. A build sees it as the file of a `RUN --mount=type=secret`."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    @classmethod
    def from_env(cls, name: str) -> Self:
        """Take the value of an environment variable.

        Raises:
            KeyError: it is not set.
        """
        return cls(os.environ[name].encode("utf-8", "surrogateescape"))

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Take the bytes of a file, as they are.

        Raises:
            OSError: it cannot be read.
        """
        return cls(path.read_bytes())

    def reveal(self) -> bytes:
        """Return the value: for whoever sends it, and nobody else."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]  # a set or a key of a dictionary is no place for it

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: a task queue would store it in the clear")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContext:
    """A folder, with its `.dockerignore` applied.

    `extra_files` come on top of it, by their path below the root: a generated Dockerfile travels so
    without a change to the folder.
    """

    path: Path
    extra_files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TarContext:
    """An uncompressed tar, sent as it is. `open` begins a new pass over its bytes."""

    open: Callable[[], AsyncIterator[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GitContext:
    """A repository at a ref. Refused so far: check it out and use `DirectoryContext`."""

    url: str
    ref: str
    subdirectory: str = "."


Context: TypeAlias = DirectoryContext | TarContext | GitContext


class Scan(StrEnum):
    """What to do about known weaknesses in the image."""

    OFF = "off"
    REPORT = "report"
    GATE = "gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A file or folder of the image that is wanted beside it."""

    name: str
    path: str  # absolute, or relative to WORKDIR; a glob is allowed
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One image that is wanted."""

    context: Context
    project: str
    environment: str = "production"
    key: str | None = None  # your own id: the same key again is the same build, never a second one
    supersedes: str | None = None  # older builds of this group are cancelled: "acme/web:main"
    dockerfile: str = "Dockerfile"
    target: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()  # what the nodes need; none: what the runner is
    want: tuple[Want, ...] = ()
    scan: Scan = Scan.REPORT
    no_cache: bool = False
    pull: bool = False
    priority: int = 0
    timeout: timedelta = timedelta(minutes=30)


On: TypeAlias = Literal["anywhere", "local", "runners", "nodes", "ci"]
IfNobodyCan: TypeAlias = Literal["build-here-capped", "build-here", "wait", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPolicy:
    """Where a build may go. A field that is none leaves the choice to the control plane."""

    on: On | None = None
    where: str | None = None  # "size=large, arch in (amd64)"
    if_nobody_can: IfNobodyCan | None = None
    patience: timedelta | None = None  # how long to wait for a busy runner
    here_memory_bytes: int | None = None  # the cap of build-here-capped
    secret_args: bool | None = None  # arguments that look like secrets are none, or may be read

    @property
    def may_build_here(self) -> bool:
        """The build may be made on the spot when nobody else can."""
        return self.if_nobody_can in {None, "build-here-capped", "build-here"}
