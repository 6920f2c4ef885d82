"""Why a build failed, told apart for people: from the exit code, the limits and the last lines.

Each cause has a reader of its own; the first that knows the ending tells it. A step can print
whatever anybody else would, so its words never make its failure somebody else's: they tell only how
its own command failed. Causes come from what was measured, from the notes of those who stand
between buildah and the step, and from buildah's own last words: it speaks last, and in one line.
Without isolation nobody stands there, and there is one voice only.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pierhead.protocol.result import Cause, Failure, Fault
from pierhead.protocol.units import kept_bytes, size
from pierhead.runner.domain.bases import BaseRefusal, registry_of
from pierhead.runner.domain.dockerfile import (
    has_here_document,
    line_of_step,
    line_that_cannot_be_parsed,
)
from pierhead.runner.domain.progress import Progress

EXTRACT_LINES: Final = 20
# Below it, "no space left" is about the disk; above it, about something smaller, like /dev/shm.
DISK_FREE_BYTES: Final = 64 * 1024 * 1024
# A disk on which a build cannot have so much is too small for builds, whatever this one does.
DISK_DECENT_BYTES: Final = 1024**3
KILLED: Final = 137
NOT_FOUND: Final = 127

_OWN: Final = "Error: "
_BUILDING: Final = "Error: building at STEP "
# How buildah ends when the command of a step ended with a code; without isolation it says less.
_STEP: Final = "building at STEP "
_ENDED: Final = re.compile(r": exit status (\d{1,3})$")
_CANNOT_START: Final = re.compile(
    r"exec: \\?\"(?P<what>[^\"\\]+)\\?\": (?P<why>[^\"\\]*)"
    r"|fork/exec (?P<path>\S+): (?P<reason>[a-z ]+?)(?=process|$)"
)
_NO_SECRET: Final = re.compile(r"secret required but no secret with id \"?([\w.-]+)\"? found")
# buildah says so of a step that a signal ended, and then gives 1 for its code. A step that prints
# it could as well end with that code.
_SIGNALLED: Final = re.compile(r"^container exited on (?P<name>[a-z ]+)$", re.M)
_SIGNALS: Final = {
    "hangup": 1,
    "aborted": 6,
    "killed": 9,
    "segmentation fault": 11,
    "terminated": 15,
}
_START_LINE: Final = re.compile(r"^Error: resolving step \{.*?StartLine:(\d{1,7}) ")
_FELL: Final = re.compile(r"(panic: |goroutine \d+ |\s*github\.com/containers/buildah/)")
_NO_SPACE: Final = ("no space left on device", "disk quota exceeded")
_NOT_A_PROGRAM: Final = ("exec format error",)
_NO_IMAGE: Final = "no image found in"
_SOURCE: Final = re.compile(r"initializing source docker://(?P<image>\S+?): (?P<why>.*)$")
_NO_REGISTRY: Final = re.compile(
    r"initializing source (?!docker:)(?P<image>\S+?):* "
    r"|Running image (?!docker:)(?P<rejected>\S+) is rejected by policy"
)
# Their lines are instructions to a builder that does not know them, and their word is a file.
_NO_HERE_DOCUMENTS: Final = re.compile(r"Unknown instruction|: \"/?<<|stat.*<<", re.I)
_NO_SUCH_FLAG: Final = re.compile(r"\b([A-Z]+) only supports the (--.*) flags?\b")
_SHORT_NAME: Final = re.compile(r'short-name "(?P<image>[^"]+)" did not resolve')
_ABOUT_THE_DOCKERFILE: Final = (
    "building at step",
    "resolving step",
    "parsing main dockerfile",
    "from requires",
    "no from statement",
    "no contents in",
    "no stage",
    'the target "',
    "repository name must be",
    "invalid reference format",
)
# buildah has the manifest and then not what it names; of a stage it names the image only then.
_NOT_WHOLE: Final = re.compile(
    r"creating build container: (?:reading blob|writing blob|copying|parsing image configuration)"
    r"|COPY --from=(?P<image>[^\s:]*[/:@]\S*): no stage or image found with that name"
)
_NOT_THERE: Final = re.compile(
    r'(?:stat: \[?|no items matching glob )"(?P<path>[^"]+)"(?:\]?| copied \(.*\))'
    r": no such file or directory$"
)
# What buildah says before and after the reason itself.
_AROUND: Final = re.compile(
    r"^Error: |building at STEP \".*?\": (?=[A-Z]|\S+ing |no |invalid |copier)|Build error: "
    r"| &imagebuilder\.Step.*$|parsing main Dockerfile: (?:\S+: )?"
    r"|creating build container: |determining starting point for build: "
    r"|checking on sources under \"[^\"]*\": |resolving step \{.*?\}: "
    r"|resolving mountpoints for container \"[0-9a-f]*\": "
)
# buildah repeats the instruction, which may have any words.
_INSTRUCTION: Final = re.compile(r"step \{.*\}", re.DOTALL)
# Lines between a step and its failure that are not the step's own words.
_NOISE: Final = re.compile(
    r"^(--> |subprocess exited with |process (failed|exited) |: exit status \d+$"
    r"|container exited on |error running container: |Trying to pull |Resolving \"|time=\")"
)


@dataclass(frozen=True, slots=True)
class Disk:
    """The runner's disk at the moment at which something was full."""

    path: str
    free_bytes: int
    total_bytes: int

    @property
    def kept_bytes(self) -> int:
        """How much of it is not for builds."""
        return kept_bytes(self.total_bytes)

    @property
    def is_low(self) -> bool:
        """Whether builds have to stop, to leave what is kept."""
        return self.free_bytes < self.kept_bytes

    @property
    def lack(self) -> str | None:
        """Why no build may begin on it, if that is so."""
        left = f"{size(self.free_bytes)} of {size(self.total_bytes)} are free at {self.path}"
        return f"its disk is full: {left}" if self.is_low else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What those who stand between buildah and a step noted of the last one, where none can."""

    refused: str | None = None  # where a mount was to be that leads out
    foreign: bool = False  # its program is for another kind of machine
    fault: str | None = None  # its mounts could not be looked at
    runc: str = ""  # why it could not be started, in the runtime's words
    began: bool = True  # it was started, so that all it did is its own
    gone: bool = False  # the runtime could not be asked how it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the backend's process ended."""

    code: int
    progress: Progress
    out_of_memory: bool = False
    memory_bytes: int | None = None  # the limit
    peak_bytes: int | None = None
    timed_out_seconds: int | None = None
    disk: Disk | None = None  # none: nothing said that something was full
    disk_before: Disk | None = None  # when it began
    disk_floor_bytes: int | None = None  # the build was stopped, to keep so much of the disk
    base_refusal: BaseRefusal | None = None  # what the control plane last said of a base image
    processes_max: int | None = None  # the limit, when the steps were at it
    dockerfile: str = ""  # its text
    dockerfile_name: str = "Dockerfile"  # as people call it
    context: str = ""  # its folder on the runner, which nobody else has to know
    witness: Witness | None = None  # none: the build was not isolated


@dataclass(frozen=True, slots=True)
class _Told:
    """An ending, with what buildah itself said last."""

    ending: Ending
    lines: tuple[str, ...]
    own: str = field(init=False)
    said: tuple[str, ...] = field(init=False)  # before that: by the step, and about it
    exit_code: int | None = field(init=False)

    def __post_init__(self) -> None:
        own = _own_words(self.lines)
        object.__setattr__(self, "own", " ".join(own))
        object.__setattr__(self, "said", self.lines[: len(self.lines) - len(own)])
        signalled = _SIGNALLED.search("\n".join(self.lines[-4:]))
        number = _SIGNALS.get(signalled["name"]) if signalled else None
        code = _code_of(self.own)
        # As a shell says it: 128 and the number of the signal.
        object.__setattr__(self, "exit_code", 128 + number if number and code else code)

    def says(self, signs: tuple[str, ...]) -> bool:
        """Say whether one of the signs is in the last lines, whoever said it."""
        text = "\n".join(self.lines).lower()
        return any(sign in text for sign in signs)

    def buildah_says(self, signs: tuple[str, ...]) -> bool:
        """Say whether buildah itself said one of the signs: of a step's code it says no more."""
        text = _INSTRUCTION.sub("step", self.own).lower() if self.exit_code is None else ""
        return any(sign in text for sign in signs)

    def failed(
        self,
        cause: Cause,
        message: str,
        detail: str | None = None,
        hint: str | None = None,
        fault: Fault = "build",
    ) -> Failure:
        """Return the failure, with the lines that explain it."""
        # What buildah itself said is in the message; the rest is what the step said.
        quiet = tuple(line for line in self.said if not _NOISE.match(line))
        return Failure(
            cause=cause,
            message=message[:1000],
            step=self.ending.progress.step,
            exit_code=self.exit_code,
            extract=quiet[-EXTRACT_LINES:],
            detail=detail[:1000] if detail else None,
            hint=hint,
            fault=fault,
        )


def _own_words(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines of buildah's own last words: several, when the step's text has several."""
    if lines and lines[-1].startswith(_OWN):
        return lines[-1:]
    found = (at for at in reversed(range(len(lines))) if lines[at].startswith(_BUILDING))
    at = next(found, len(lines))
    return lines[at:] if _code_of(" ".join(lines[at:])) is not None else ()


def _code_of(text: str) -> int | None:
    """Return the code that a step's command ended with, where that is what the words end with."""
    ended, step = _ENDED.search(text), text.find(_STEP)
    if ended is None or not 0 <= step <= ended.start() - len(_STEP):
        return None
    return int(ended[1])


def disk_full(disk: Disk) -> Failure:
    """Return the failure of a build that was stopped to keep something of the runner's disk.

    No step ran meanwhile: a larger disk would have held it.
    """
    message, detail, hint = _full(disk, disk.kept_bytes)
    return Failure(cause="disk-full", message=message, detail=detail, hint=hint, fault="runner")


def of_the_machine(image: str) -> Failure:
    """Return the failure of a build whose base image would be read from its runner's machine."""
    return Failure(
        cause="base-image",
        message=f"the base image {image} cannot be read"[:1000],
        hint="only base images of registries and earlier stages can be had",
    )


def explain(ending: Ending) -> Failure:
    """Return the failure for people."""
    told = _Told(ending, tuple(line for line in ending.progress.tail if line.strip()))
    for reader in _READERS:
        failure = reader(told)
        if failure is not None:
            return failure
    return told.failed("runner", "the builder failed", _reason(told) or None, fault="either")


def lost_builder(ending: Ending) -> str | None:
    """Say why the builder itself is gone, so that the build should be tried again; none: it is not.

    Whatever a step does, buildah ends by saying why. Without that it was killed, or never began.
    And whatever is wrong with a step, the runtime says why it does not start it, if it runs at all.
    """
    told = _Told(ending, tuple(line for line in ending.progress.tail if line.strip()))
    if explain(ending).cause == "runner" and (ending.code < 0 or not told.own):
        return f"buildah ended with code {ending.code} without a word"
    witness = ending.witness
    if witness is not None and (witness.gone or (_did_not_begin(told) and not witness.runc)):
        return "the runtime of steps, runc, cannot be run"
    return None


def _did_not_begin(told: _Told) -> bool:
    """Say whether the last step was never started, though it may have been."""
    witness = told.ending.witness
    return (
        told.exit_code is not None
        and witness is not None
        and not witness.began
        and witness.refused is None
        and witness.fault is None
        and not _is_stopped(told.ending)
    )


def _is_stopped(ending: Ending) -> bool:
    """Say whether something is known that ends a step at any moment."""
    limits = (ending.timed_out_seconds, ending.processes_max, ending.disk, ending.disk_floor_bytes)
    return ending.out_of_memory or any(limit is not None for limit in limits)


def _time(told: _Told) -> Failure | None:
    limit = told.ending.timed_out_seconds
    if limit is None:
        return None
    message = f"it took longer than the {limit} s that it may take"
    return told.failed("time", message, hint=f"allow more: --timeout {2 * limit}")


def _memory(told: _Told) -> Failure | None:
    ending = told.ending
    if not ending.out_of_memory:
        return None
    facts = [f"peak {size(ending.peak_bytes)}"] if ending.peak_bytes else []
    facts += [f"exit {told.exit_code}"] if told.exit_code else []
    limit = f" of {size(ending.memory_bytes)}" if ending.memory_bytes else ""
    detail = f"the build was killed at its limit{limit}" + (f" ({', '.join(facts)})" * bool(facts))
    hint = "let a machine with more memory build it: pierhead add NAME --builds"
    return told.failed("out-of-memory", "out of memory", detail, hint)


def _disk(told: _Told) -> Failure | None:
    disk, floor = told.ending.disk, told.ending.disk_floor_bytes
    if not told.says(_NO_SPACE) and floor is None:
        return None
    alone = told.ending.witness is not None and not told.buildah_says(_NO_SPACE)
    if alone and floor is None and disk is None:
        return None  # a step says so, and nobody looked
    if floor is None and disk is not None and disk.free_bytes > DISK_FREE_BYTES:
        hint = "a step's shared memory is 64 MB; more of it: --shm-size 1g"
        detail = f"the runner's disk has space: {size(disk.free_bytes)} are free"
        return told.failed("command", "a step filled a file system of its own", detail, hint)
    return told.failed("disk-full", *_full(disk, floor), fault=_who_filled(told.ending))


def _who_filled(ending: Ending) -> Fault:
    """Say whose fault a full disk is: a step that writes for ever would fill a larger one, too."""
    if ending.disk is None or ending.disk_before is None:
        return "either"
    took = ending.disk_before.free_bytes - ending.disk.free_bytes
    return "runner" if took < DISK_DECENT_BYTES else "either"


def _full(disk: Disk | None, floor: int | None) -> tuple[str, str | None, str]:
    """Return what is said of a full disk: message, detail and hint."""
    left = None
    if disk:
        left = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} were free at {disk.path}"
    if left and floor is not None:
        left += f"; {size(floor)} are kept free for what else runs there"
    hint = "free some space on the runner, then build again"
    return "the runner's disk is full", left, hint


def _processes(told: _Told) -> Failure | None:
    limit = told.ending.processes_max
    if limit is None:
        return None
    hint = "let fewer run at a time: make -j4, say"
    return told.failed("command", f"too many processes (limit {limit})", hint=hint)


def _killed(told: _Told) -> Failure | None:
    if told.ending.code >= 0:
        return None
    return told.failed("runner", f"the builder was killed by signal {-told.ending.code}")


def _platform(told: _Told) -> Failure | None:
    hint = "build it on a runner of that platform: --platform linux/arm64, say"
    witness = told.ending.witness
    if told.exit_code is None and _NO_IMAGE in told.own:
        message = "the base image is not there for the runner's platform"
    elif told.exit_code is None or not told.says(_NOT_A_PROGRAM):
        return None
    elif witness is None or witness.foreign:
        message = "a program of the image is for another platform than the runner's"
    else:
        return None
    return told.failed("platform", message, hint=hint)


def _command(told: _Told) -> Failure | None:
    code = told.exit_code
    if code is None:
        return None
    witness = told.ending.witness
    starting = _CANNOT_START.search(witness.runc if witness else "\n".join(told.lines))
    if starting is not None:
        what = starting["what"] or starting["path"]
        why = (starting["why"] or starting["reason"] or "").split(": ")[-1].strip()
        hint = "is it in the image, and in the PATH of its ENV?"
        return told.failed("command", f"{what} cannot be started: {why}", hint=hint)
    if witness is not None and _did_not_begin(told):
        # What it was asked for may be wrong, or what it has.
        message = "the step could not be started"
        return told.failed("command", message, witness.runc or None, fault="either")
    if code == NOT_FOUND:
        hint = "is it in the image, and in the PATH of its ENV?"
        return told.failed("command", f"a command was not found (exit code {code})", hint=hint)
    if code == KILLED:
        return told.failed("command", f"a command was killed (exit code {code})")
    return told.failed("command", f"a command ended with exit code {code}")


def _mount(told: _Told) -> Failure | None:
    witness = told.ending.witness
    if witness is None or (witness.refused is None and witness.fault is None):
        return None
    if witness.refused is None:
        message = "what a step would mount could not be looked at"
        return told.failed("runner", message, witness.fault, fault="either")
    message = f"the source of the mount at {witness.refused} leads out of where it may be"
    hint = "a link in a stage, the context or a cache leads there: name what it leads to"
    return told.failed("dockerfile", message, hint=hint)


def _base_image(told: _Told) -> Failure | None:
    short = _SHORT_NAME.search(told.own)
    if short is not None:
        hint = f"write it out: docker.io/library/{short['image']}"
        message = f"the base image {short['image']} names no registry"
        return told.failed("base-image", message, hint=hint)
    found = _SOURCE.search(told.own)
    if found is None and (local := _NO_REGISTRY.search(told.own)) is not None:
        failure = of_the_machine(local["image"] or local["rejected"])
        return told.failed(failure.cause, failure.message, hint=failure.hint)
    refusal = told.ending.base_refusal
    if found is None:
        return _base_image_in_part(told, refusal) if refusal is not None else None
    image, why = found["image"], found["why"]
    if refusal is not None:
        return _refused(told, image, refusal)
    registry = registry_of(image)
    for signs, message, hint in _REGISTRY_SAYS:
        if any(sign in why.lower() for sign in signs):
            text = message.format(registry=registry, image=image)
            return told.failed("base-image", text, why, hint)
    return told.failed("base-image", f"{registry} did not give the base image {image}", why)


def _base_image_in_part(told: _Told, refusal: BaseRefusal) -> Failure | None:
    """Tell of a base image whose manifest was given, and something that it names was not."""
    found = _NOT_WHOLE.search(told.own)
    if found is None:
        return None
    image = found["image"] or refusal.image
    if registry_of(image) != registry_of(refusal.image):
        return None  # that was about another one
    return _refused(told, image, refusal)


def _refused(told: _Told, image: str, refusal: BaseRefusal) -> Failure:
    """Whatever buildah makes of it: the control plane said which registry, as whom, and why."""
    text = f"the base image {image} is not to be had: {refusal.message}"
    return told.failed("base-image", text, hint=refusal.hint or "check the name after FROM")


_REGISTRY_SAYS: Final = (
    (
        ("toomanyrequests", "too many requests"),
        "{registry} does not let this runner pull more for now",
        "wait, then build again",
    ),
    (
        ("unauthorized", "denied", "forbidden", "authentication required"),
        "{registry} does not give the base image {image}: it is private, or not there "
        "(no credential was tried)",
        "check the name after FROM",
    ),
    (
        ("manifest unknown", "name unknown", "not found", "404"),
        "{registry} has no base image {image}",
        "check the name and the tag after FROM",
    ),
    (
        ("x509", "certificate", "http response to https client", "tls"),
        "{registry} has no certificate that the runner trusts, so the base image {image} "
        "was not taken",
        "install its certificate on the runner",
    ),
    (
        ("no such host", "refused", "timeout", "unreachable", "no route", "network"),
        "{registry} cannot be reached from the runner, so the base image {image} was not to be had",
        "is the name right, and is the runner online?",
    ),
)


def _secret(told: _Told) -> Failure | None:
    found = _NO_SECRET.search(told.own)
    if found is None:
        return None
    message = f"the Dockerfile needs the secret {found[1]}, which was not given"
    hint = f"give it: pierhead build --secret id={found[1]},env=NAME (or src=FILE)"
    return told.failed("secret", message, hint=hint)


def _line(told: _Told) -> int | None:
    """Return the line of the Dockerfile that buildah's last words are about, if it can be found."""
    ending, said = told.ending, _START_LINE.search(told.own)
    if said is not None:
        return int(said[1])
    if ending.progress.step:
        return line_of_step(ending.dockerfile, ending.progress.step)
    return line_that_cannot_be_parsed(ending.dockerfile)


def _parser(told: _Told) -> Failure | None:
    """Tell of what buildah's own parser falls over: it then ends as no step can make it end."""
    ending = told.ending
    line = line_that_cannot_be_parsed(ending.dockerfile)
    fell = any(_FELL.match(text) for text in told.lines)
    if told.own or ending.progress.step or line is None or not fell:
        return None
    message = f"{ending.dockerfile_name}, line {line}: the instruction needs a value"
    return Failure(cause="dockerfile", message=message)


def _dockerfile(told: _Told) -> Failure | None:
    if not told.buildah_says(_ABOUT_THE_DOCKERFILE):
        return None
    ending = told.ending
    line = _line(told)
    where = f"{ending.dockerfile_name}, line {line}" if line else ending.dockerfile_name
    if has_here_document(ending.dockerfile) and _NO_HERE_DOCUMENTS.search(told.own):
        message = f"{ending.dockerfile_name} has a here-document (<<), which this builder has not"
        return told.failed("dockerfile", message, hint="put its lines into a file of the context")
    flags = _NO_SUCH_FLAG.search(told.own)
    if flags is not None:
        given = _flags_of(ending.progress.step)
        unknown = next((flag for flag in given if flag not in flags[2]), "such flag")
        message = f"{where}: this builder has no {flags[1]} {unknown}"
        return told.failed("dockerfile", message, hint="leave it out")
    missing = _NOT_THERE.search(told.own)
    if missing is not None:
        said = "is it left out by .dockerignore?"
        message = f"{where}: there is no {missing['path'].lstrip('/')} in the context"
        return told.failed("dockerfile", message, hint=said)
    return told.failed("dockerfile", f"{where}: {_reason(told)}")


def _flags_of(step: str | None) -> list[str]:
    """Return the names of the flags of a step: `--exclude`."""
    words = (step or "").split()
    return [word.partition("=")[0] for word in words if word.startswith("--")]


_READERS: Final[tuple[Callable[[_Told], Failure | None], ...]] = (
    _time,
    _memory,
    _disk,
    _processes,
    _killed,
    _platform,
    _mount,
    _command,
    _secret,
    _base_image,
    _parser,
    _dockerfile,
)


def _reason(told: _Told) -> str:
    """Return what buildah said, without what is around it and without the runner's own paths."""
    reason = _AROUND.sub("", told.own).strip()
    context = told.ending.context
    return reason.replace(f"{context}/", "").replace(context, "the context") if context else reason
