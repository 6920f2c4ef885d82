"""How a build ends: a closed union. A build that failed is a result, not an error.

`match` over it with `assert_never`: a way to end that is missing is then an error of the types.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pierhead.router.image import ImageInfo

# What the user's own files or limits did. `command`: a step of the Dockerfile ended badly.
FailureCause: TypeAlias = Literal[
    "command",
    "dockerfile",
    "out-of-memory",
    "disk-full",
    "base-image",
    "platform",
    "context",
    "time",
    "secret",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One runner, and why it does not take the build: "offline since 14:02"."""

    runner: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligible:
    """One runner that would take the build."""

    runner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """There is an image."""

    image: ImageInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The build itself failed; another try gives the same."""

    cause: FailureCause
    step: str | None  # "6/9 RUN pnpm build"
    exit_code: int | None
    extract: tuple[str, ...]  # the lines that explain it
    message: str = ""  # one sentence
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Somebody, or a newer build, ended it.

    `proven`: nothing of it was running, or its runner looked afterwards and nothing was left.
    """

    by: str
    reason: str
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBuilt:
    """Nobody built it. `integrity`: somebody claimed to have, and the claim was false."""

    reason: Literal["no-runner", "runners-lost", "waited-too-long", "integrity"]
    rejected: tuple[Rejection, ...] = ()
    detail: str = ""


Outcome: TypeAlias = Built | Failed | Cancelled | NotBuilt
