"""Why a build failed, told apart for people: from the exit code and the last lines."""

import re
from dataclasses import dataclass
from typing import Final

from pierhead.protocol.result import Failure
from pierhead.runner.domain.progress import Progress

_EXIT: Final = re.compile(r"exit(?:ed with)? (?:status|code)[: ]*(\d{1,3})(?!\d)")
# What buildah says of a step that ran; before it, everything is the step's own output.
_RAN: Final = re.compile(r"while running runtime: exit status \d{1,3}\s*$")
_DISK: Final = ("no space left on device", "disk quota exceeded")
_BASE: Final = (
    "initializing source docker://",
    "creating build container",
    "manifest unknown",
    "pinging container registry",
    "short-name",
    "error pulling image",
)
_DOCKERFILE: Final = (
    "unknown instruction",
    "error parsing",
    "parse error",
    "no FROM statement",
    "no such stage",
    "build arg",
    "build-arg",
    "COPY requires",
    "FROM requires",
    "no such file or directory",
    "file not found",
)
EXTRACT_LINES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the backend's process ended."""

    code: int
    progress: Progress
    out_of_memory: bool = False
    memory_bytes: int | None = None  # the limit
    timed_out_seconds: int | None = None


def explain(ending: Ending) -> Failure:
    """Return the failure for people."""
    progress = ending.progress
    lines = tuple(line for line in progress.tail if line.strip())[-EXTRACT_LINES:]
    text = "\n".join(lines).lower()
    found = _EXIT.findall(text)
    code = int(found[-1]) if found else None
    where = f" at {progress.step}" if progress.step else ""

    def failed(cause: str, message: str, hint: str | None = None) -> Failure:
        return Failure(
            cause=cause,  # type: ignore[arg-type]
            message=message[:1000],
            step=progress.step,
            exit_code=code,
            extract=lines,
            hint=hint,
        )

    if ending.timed_out_seconds is not None:
        limit = ending.timed_out_seconds
        return failed("time", f"not finished after {limit} s{where}", "allow more: --timeout")
    if ending.out_of_memory:
        limit = (ending.memory_bytes or 0) // 2**20
        return failed("out-of-memory", f"out of memory{where}: its limit is {limit} MiB")
    if any(sign in text for sign in _DISK):
        hint = "free some space on the runner"
        return failed("disk-full", f"the runner's disk is full{where}", hint)
    if ending.code < 0:
        return failed("runner", f"the build was killed by signal {-ending.code}{where}")
    if _RAN.search(text):
        return failed("command", f"a command ended with exit code {code}{where}")
    if any(sign in text for sign in (sign.lower() for sign in _BASE)):
        return failed("base-image", f"a base image could not be had{where}")
    if code is not None:
        return failed("command", f"a command ended with exit code {code}{where}")
    if any(sign.lower() in text for sign in _DOCKERFILE):
        return failed("dockerfile", f"the Dockerfile cannot be followed{where}")
    return failed("command", f"the build failed{where}")
