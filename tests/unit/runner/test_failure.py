"""What buildah 1.28 wrote when builds failed, and what people are told."""

from dataclasses import replace

import pytest

from pierhead.protocol.result import Failure
from pierhead.protocol.units import kept_bytes
from pierhead.runner.domain.bases import BaseRefusal
from pierhead.runner.domain.failure import (
    DISK_DECENT_BYTES,
    EXTRACT_LINES,
    Disk,
    Ending,
    Witness,
    disk_full,
    explain,
    lost_builder,
)
from pierhead.runner.domain.progress import Progress

RAN = 'Error: building at STEP "RUN x": while running runtime: exit status {}\n'
SOURCE = "Error: creating build container: initializing source docker://"


def told(
    output: str,
    *,
    code: int = 1,
    out_of_memory: bool = False,
    disk: Disk | None = None,
    dockerfile: str = "",
    timed_out_seconds: int | None = None,
    base_refusal: BaseRefusal | None = None,
    witness: Witness | None = None,
) -> Failure:
    progress = Progress()
    progress.feed(output.encode())
    progress.finish()
    return explain(
        Ending(
            code=code,
            progress=progress,
            out_of_memory=out_of_memory,
            memory_bytes=2_000_000_000,
            peak_bytes=1_999_000_000,
            disk=disk,
            dockerfile=dockerfile,
            timed_out_seconds=timed_out_seconds,
            base_refusal=base_refusal,
            witness=witness,
        )
    )


def test_a_failed_step_is_told_with_its_code_and_what_it_said_last() -> None:
    noise = "".join(f"line {number}\n" for number in range(100))

    failure = told(f"STEP 5/9: RUN a\nnot this\nSTEP 6/9: RUN x\n{noise}{RAN.format(7)}")

    assert (failure.cause, failure.step, failure.exit_code) == ("command", "6/9 RUN x", 7)
    assert failure.message == "a command ended with exit code 7"
    assert len(failure.extract) == EXTRACT_LINES
    assert failure.extract[-1] == "line 99"


def test_what_buildah_says_around_a_step_is_not_what_the_step_said() -> None:
    failure = told(
        "[2/3] STEP 2/2: RUN x\nmine\nsubprocess exited with status 7\n"
        'subprocess exited with status 7\nError: building at STEP "RUN x": exit status 7\n'
    )

    assert (failure.step, failure.extract) == ("[2/3] 2/2 RUN x", ("mine",))
    assert failure.exit_code == 7


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (f"/bin/sh: nope: not found\n{RAN.format(127)}", "a command was not found (exit code 127)"),
        (RAN.format(137), "a command was killed (exit code 137)"),
        (
            f"container exited on killed\n{RAN.format(1)}",
            "a command was killed (exit code 137)",
        ),
        (
            f"container exited on segmentation fault\n{RAN.format(1)}",
            "a command ended with exit code 139",
        ),
        (
            "error running container: from /usr/sbin/runc creating container for [/nope]: "
            'time="x" level=error msg="runc create failed: unable to start container process: '
            'exec: \\"/nope\\": stat /nope: no such file or directory"\n: exit status 1\n'
            + RAN.format(1),
            "/nope cannot be started: no such file or directory",
        ),
        (
            "process failed to start with error: fork/exec /nope: permission denied"
            "process exited with error: exec: not startedsubprocess exited with status 1\n"
            'Error: building at STEP "RUN /nope": exit status 1\n',
            "/nope cannot be started: permission denied",
        ),
    ],
)
def test_a_command_that_was_not_there_or_was_killed_is_told_apart(
    output: str, message: str
) -> None:
    failure = told(f"STEP 2/2: RUN x\n{output}")
    assert (failure.cause, failure.message) == ("command", message)


NOPE = (
    'runc create failed: unable to start container process: exec: "/nope": stat /nope: no such '
    "file or directory"
)


def test_a_mount_that_is_refused_is_the_dockerfiles_fault_and_names_its_target() -> None:
    failure = told(RAN.format(1), witness=Witness(refused="/mnt"))

    assert failure.cause == "dockerfile"
    assert failure.message == "the source of the mount at /mnt leads out of where it may be"


def test_mounts_that_cannot_be_looked_at_are_the_runners_fault() -> None:
    failure = told(RAN.format(1), witness=Witness(fault="KeyError('mounts')"))

    assert (failure.cause, failure.detail) == ("runner", "KeyError('mounts')")


def test_a_command_that_cannot_be_started_is_told_by_what_runc_noted() -> None:
    failure = told(RAN.format(1), witness=Witness(runc=NOPE))

    assert (failure.cause, failure.message) == (
        "command",
        "/nope cannot be started: no such file or directory",
    )


ANYBODY = (
    "error running container: from /run/pierhead/runtime creating container for [/bin/sh]: "
    "pierhead refuses the mount at /mnt: its source is a link that leads out\n: exit status 1\n",
    f'time="x" level=error msg="{NOPE}"\n',
    "exec /bin/sh: exec format error\n",
    "no image found in manifest list for architecture amd64\n",
    "NO SPACE LEFT ON DEVICE\n",
    "write /var/lib/pierhead-runner/x: disk quota exceeded\n",
    "panic: runtime error\n",
    f"{SOURCE}h.example/a: denied\n",
    'Error: secret required but no secret with id "x" found\n',
    'Error: building at STEP "COPY a b": checking on sources under "/c": copier: stat: "/a": no '
    "such file or directory\n",
    'Error: building at STEP "RUN x": while running runtime: exit status 9\n',
    'Error: the target "x" was not found in the provided Dockerfile\n',
)


@pytest.mark.parametrize("said", [*ANYBODY, "".join(ANYBODY)])
def test_what_a_step_prints_makes_its_failure_nobody_elses(said: str) -> None:
    failure = told(f"STEP 2/2: RUN x\n{said}{RAN.format(3)}", code=3, witness=Witness())

    assert (failure.cause, failure.exit_code) == ("command", 3)
    assert failure.message == "a command ended with exit code 3"
    assert failure.hint is None


def test_a_step_that_says_that_something_is_full_is_believed_only_of_itself() -> None:
    disk = Disk("/var/lib/x", 10_000_000_000, 40_000_000_000)
    failure = told(FULL, disk=disk, witness=Witness())

    assert (failure.cause, failure.message) == ("command", "a step filled a file system of its own")


def test_a_fault_of_the_builder_stays_one_whatever_the_step_said_before() -> None:
    own = (
        "Error: committing container for step {Env:[A=b] Command:run Args:[make no stage target] "
        'Original:RUN make "target"}: write /x: input/output error\n'
    )
    failure = told(f"STEP 2/2: RUN x\n{''.join(ANYBODY)}{own}", witness=Witness())

    assert failure.cause == "runner"


def test_the_memory_limit_wins_over_what_a_step_says() -> None:
    failure = told(f"STEP 1/1: RUN x\nKilled\n{RAN.format(137)}", out_of_memory=True)

    assert (failure.cause, failure.message) == ("out-of-memory", "out of memory")
    assert failure.detail == "the build was killed at its limit of 2.0 GB (peak 2.0 GB, exit 137)"
    assert failure.extract == ("Killed",)


FULL = f"STEP 2/2: RUN dd\ndd: error writing '/big': No space left on device\n{RAN.format(1)}"


def test_a_full_disk_is_the_runners_and_comes_with_its_numbers() -> None:
    failure = told(FULL, disk=Disk("/var/lib/x", 1_000_000, 40_000_000_000))

    assert (failure.cause, failure.message) == ("disk-full", "the runner's disk is full")
    assert failure.detail == "1.0 MB of 40.0 GB were free at /var/lib/x"


def test_a_build_that_was_stopped_to_keep_some_of_the_disk_says_how_much() -> None:
    progress = Progress()
    progress.feed(b"STEP 1/1: RUN x\nhalf a line")
    progress.finish()
    disk = Disk("/var/lib/x", 500_000_000, 10_000_000_000)

    failure = explain(Ending(code=-9, progress=progress, disk=disk, disk_floor_bytes=536_870_912))

    assert (failure.cause, failure.message) == ("disk-full", "the runner's disk is full")
    assert failure.detail == (
        "500.0 MB of 10.0 GB were free at /var/lib/x; 536.9 MB are kept free for what else runs "
        "there"
    )


def test_of_a_small_disk_a_fifth_is_kept() -> None:
    assert kept_bytes(10**9) == 2 * 10**8
    assert kept_bytes(10**12) == 512 * 2**20


def test_too_many_processes_are_told_with_their_limit() -> None:
    progress = Progress()
    progress.feed(f"STEP 1/1: RUN x\nsh: can't fork\n{RAN.format(2)}".encode())
    progress.finish()

    failure = explain(Ending(code=2, progress=progress, processes_max=4096))

    assert (failure.cause, failure.message) == ("command", "too many processes (limit 4096)")
    assert failure.extract == ("sh: can't fork",)


def test_a_full_file_system_of_the_step_is_not_the_runners_disk() -> None:
    failure = told(FULL, disk=Disk("/var/lib/x", 10_000_000_000, 40_000_000_000))

    assert failure.cause == "command"
    assert failure.message == "a step filled a file system of its own"
    assert "--shm-size" in (failure.hint or "")


@pytest.mark.parametrize(
    ("witness", "cause"),
    [(None, "platform"), (Witness(foreign=True), "platform"), (Witness(), "command")],
)
def test_a_program_for_another_platform_is_not_the_commands_fault(
    witness: Witness | None, cause: str
) -> None:
    output = f"STEP 2/2: RUN x\nexec /bin/sh: exec format error\n{RAN.format(1)}"
    assert told(output, witness=witness).cause == cause


def test_a_foreign_program_that_runs_is_emulated_and_its_failure_its_own() -> None:
    assert told(RAN.format(3), witness=Witness(foreign=True)).cause == "command"


def test_a_base_image_for_other_platforms_only_is_one_of_the_platform() -> None:
    failure = told(
        "STEP 1/1: FROM h/a\n" + SOURCE + "h/a:latest: choosing an image from manifest list "
        'docker://h/a:latest: no image found in manifest list for architecture amd64, variant "", '
        "OS linux\n"
    )
    assert failure.cause == "platform"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "127.0.0.1:5/a/b:3: reading manifest 3 in 127.0.0.1:5/a/b: manifest unknown: "
            "manifest unknown",
            "127.0.0.1:5 has no base image 127.0.0.1:5/a/b:3",
        ),
        (
            "127.0.0.1:5/a/b:3: reading manifest 3 in 127.0.0.1:5/a/b: unauthorized: "
            "authentication required",
            "127.0.0.1:5 does not give the base image 127.0.0.1:5/a/b:3: it is private, or not "
            "there (no credential was tried)",
        ),
        (
            'nope/nope:latest: pinging container registry registry-1.docker.io: Get "https://'
            'registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host',
            "docker.io cannot be reached from the runner, so the base image nope/nope:latest was "
            "not to be had",
        ),
        (
            'localhost:1/a:3: pinging container registry localhost:1: Get "https://localhost:1/v2/'
            '": dial tcp 127.0.0.1:1: connect: connection refused',
            "localhost:1 cannot be reached from the runner, so the base image localhost:1/a:3 was "
            "not to be had",
        ),
        (
            "nope:latest: reading manifest latest in docker.io/library/nope: toomanyrequests: You "
            "have reached your pull rate limit",
            "docker.io does not let this runner pull more for now",
        ),
        (
            'h.example/a:1: pinging container registry h.example: Get "https://h.example/v2/": '
            "x509: certificate signed by unknown authority",
            "h.example has no certificate that the runner trusts, so the base image h.example/a:1 "
            "was not taken",
        ),
        ("h.example/a:1: strange", "h.example did not give the base image h.example/a:1"),
    ],
)
def test_a_base_image_that_is_not_to_be_had_names_its_registry_and_why(
    said: str, message: str
) -> None:
    failure = told(f"STEP 1/1: FROM x\n{SOURCE}{said}\n")

    assert (failure.cause, failure.message) == ("base-image", message)
    assert failure.detail
    assert failure.detail in said


@pytest.mark.parametrize(
    ("own", "image"),
    [
        (
            "creating build container: reading blob sha256:ab: Error fetching blob: invalid status "
            "code from registry 403 (Forbidden)",
            "h.example/a",
        ),
        (
            'creating build container: writing blob: storing blob to file "/var/tmp/storage9/1": '
            "happened during read: unexpected EOF",
            "h.example/a",
        ),
        ("creating build container: parsing image configuration: unexpected EOF", "h.example/a"),
        (
            "COPY --from=h.example/a:1: no stage or image found with that name",
            "h.example/a:1",
        ),
    ],
)
def test_a_base_image_of_which_a_part_is_not_had_is_told_by_what_the_control_plane_said(
    own: str, image: str
) -> None:
    said = BaseRefusal(image="h.example/a", message="h.example broke off", hint="build again")
    output = f"STEP 1/1: FROM x\nError: {own}\n"
    failure = told(output, base_refusal=said)
    assert failure.cause == "base-image"
    assert failure.message == f"the base image {image} is not to be had: h.example broke off"
    assert failure.hint == "build again"
    assert told(output).cause != "base-image"


@pytest.mark.parametrize("name", ["stge", "other.example/b:1"])
def test_a_stage_that_is_not_there_is_no_base_image_that_was_refused(name: str) -> None:
    said = BaseRefusal(image="docker.io/library/x", message="docker.io has none")
    own = f"Error: COPY --from={name}: no stage or image found with that name\n"
    assert told(f"STEP 1/1: FROM x\n{own}", base_refusal=said).cause == "dockerfile"


def test_a_base_image_of_another_place_than_a_registry_is_told() -> None:
    failure = told(
        "STEP 1/1: FROM oci:x\nError: creating build container: initializing source oci:x:: "
        "open x/index.json: no such file or directory\n"
    )

    assert (failure.cause, failure.message) == ("base-image", "the base image oci:x cannot be read")


def test_no_dockerfile_makes_the_builder_out_to_be_lost() -> None:
    progress = Progress()
    step = "COPY /state/slot-0/web/policy.json /x"
    said = f'building at STEP "{step}": open /state/slot-0/web/policy.json: no such file'
    progress.feed(f"STEP 2/2: {step}\nError: {said} or directory\n".encode())
    progress.finish()

    assert not lost_builder(Ending(code=125, progress=progress))


def test_a_base_image_that_the_policy_does_not_let_in_is_told_so() -> None:
    failure = told(
        "STEP 1/1: FROM dir:/usr/x\nError: creating build container: Source image rejected: "
        "Running image dir:/usr/x is rejected by policy.\n"
    )

    assert failure.message == "the base image dir:/usr/x cannot be read"
    assert failure.hint == "only base images of registries and earlier stages can be had"


def test_a_base_image_without_a_registry_is_told_how_to_write_it() -> None:
    failure = told(
        'STEP 1/1: FROM nope\nError: creating build container: short-name "nope" did not resolve '
        "to an alias and no unqualified-search registries are defined\n"
    )
    assert failure.cause == "base-image"
    assert failure.hint == "write it out: docker.io/library/nope"


@pytest.mark.parametrize(
    ("dockerfile", "output", "message"),
    [
        (
            "FROM scratch\nFOO bar\n",
            'STEP 2/2: FOO bar\nError: building at STEP "FOO ": Build error: Unknown instruction: '
            '"FOO" &imagebuilder.Step{Env:[]string{"PATH=/bin"}, Command:"foo"}\n',
            'Dockerfile, line 2: Unknown instruction: "FOO"',
        ),
        (
            "# a comment\nFROM scratch\n\nCOPY nope \\\n  /x\n",
            'STEP 2/2: COPY nope /x\nError: building at STEP "COPY nope /x": checking on sources '
            'under "/c": copier: stat: "/nope": no such file or directory\n',
            "Dockerfile, line 4: there is no nope in the context",
        ),
        (
            "FROM scratch AS a\nADD x /\nFROM scratch\nADD x /\n",
            '[2/2] STEP 2/2: ADD x /\nError: building at STEP "ADD x /": ADD requires at least one '
            "argument\n",
            "Dockerfile, line 2: ADD requires at least one argument",
        ),
        (
            "FROM scratch\nENV a\n",
            "Error: parsing main Dockerfile: Dockerfile: ENV must have two arguments\n",
            "Dockerfile, line 2: ENV must have two arguments",
        ),
        (
            "FROM a b\n",
            "Error: FROM requires either one argument, or three: FROM <source> [as <name>]\n",
            "Dockerfile, line 1: FROM requires either one argument, or three: FROM <source> "
            "[as <name>]",
        ),
        ("RUN x\n", "Error: no FROM statement found\n", "Dockerfile: no FROM statement found"),
        (
            "FROM scratch\nCOPY --from=nostage /x /y\n",
            "STEP 2/2: COPY --from=nostage /x /y\nError: COPY --from=nostage: no stage or image "
            "found with that name\n",
            "Dockerfile, line 2: COPY --from=nostage: no stage or image found with that name",
        ),
    ],
)
def test_a_wrong_dockerfile_is_told_by_its_line(dockerfile: str, output: str, message: str) -> None:
    failure = told(output, dockerfile=dockerfile)
    assert (failure.cause, failure.message) == ("dockerfile", message)


def test_a_step_cannot_pretend_to_be_buildah() -> None:
    said = f'Error: building at STEP "x": COPY requires\n{SOURCE}h.example/a: denied\n'
    failure = told(f"STEP 2/2: RUN x\n{said}{RAN.format(3)}")
    assert (failure.cause, failure.exit_code) == ("command", 3)


def test_a_fault_of_buildah_is_not_the_users() -> None:
    assert told("STEP 1/1: RUN x\n", code=-9).cause == "runner"
    broken = told("STEP 1/1: FROM scratch\nError: open /x.lock: read-only file system\n")
    assert (broken.cause, broken.message) == ("runner", "the builder failed")
    assert broken.detail == "open /x.lock: read-only file system"


@pytest.mark.parametrize(
    ("code", "last", "lost"),
    [
        (1, "unshare: sigprocmask unblock failed: Invalid argument\n", True),
        (-9, "", True),
        (1, "", True),
        (1, "nsenter: cannot open /run/netns/x: No such file or directory\n", True),
        (137, RAN.format(137), False),
        (7, RAN.format(7), False),
        (125, "Error: something else\n", False),
        (1, "write /x: no space left on device\n", False),
    ],
)
def test_a_builder_that_is_gone_is_told_from_one_that_failed(
    code: int, last: str, lost: bool
) -> None:
    progress = Progress()
    progress.feed(f"STEP 1/1: RUN x\nError: the step says so\nmore\n{last}".encode())
    progress.finish()

    assert bool(lost_builder(Ending(code=code, progress=progress))) is lost


def test_time_that_is_over_wins_over_everything() -> None:
    failure = told("STEP 1/1: RUN x\n", code=-9, out_of_memory=True, timed_out_seconds=30)

    assert failure.cause == "time"
    assert failure.hint == "allow more: --timeout 60"


def test_a_failure_without_any_output_is_still_one() -> None:
    assert told("").message


BEGAN = Witness()
NOT_BEGUN = Witness(began=False)


def ending(output: str, *, witness: Witness | None = None, disk: Disk | None = None) -> Ending:
    progress = Progress()
    progress.feed(output.encode())
    progress.finish()
    return Ending(code=1, progress=progress, witness=witness, disk=disk)


def test_a_runtime_that_says_nothing_and_starts_no_step_is_gone() -> None:
    """Whatever the step printed: it printed nothing."""
    said = f"STEP 1/1: RUN x\n/run/pierhead/runtime: exec: runc: not found\n{RAN.format(127)}"
    lost = lost_builder(ending(said, witness=NOT_BEGUN))

    assert lost == "the runtime of steps, runc, cannot be run"
    assert lost_builder(ending(said, witness=BEGAN)) is None
    assert lost_builder(ending(said, witness=Witness(gone=True))) == lost


def test_a_step_that_the_runtime_does_not_start_is_nobodys_fault_for_sure() -> None:
    runc = "error setting rlimits for ready process: operation not permitted"
    failed = ending(f"STEP 1/1: RUN x\n{RAN.format(1)}", witness=replace(NOT_BEGUN, runc=runc))
    failure = explain(failed)

    assert lost_builder(failed) is None
    assert (failure.cause, failure.fault) == ("command", "either")
    assert (failure.message, failure.detail) == ("the step could not be started", runc)


def test_a_program_that_is_not_in_the_image_is_the_builds_fault() -> None:
    runc = 'exec: \\"nothing\\": executable file not found in $PATH'
    failed = ending(f"STEP 1/1: RUN x\n{RAN.format(1)}", witness=replace(NOT_BEGUN, runc=runc))

    assert lost_builder(failed) is None
    assert explain(failed).fault == "build"


@pytest.mark.parametrize(
    "known",
    [
        {"out_of_memory": True},
        {"timed_out_seconds": 1},
        {"processes_max": 1},
        {"disk": Disk("/x", 0, 1)},
        {"disk_floor_bytes": 1},
    ],
)
def test_a_step_that_was_stopped_before_it_began_says_nothing_of_the_runtime(
    known: dict[str, object],
) -> None:
    failed = ending(f"STEP 1/1: RUN x\n{RAN.format(1)}", witness=NOT_BEGUN)

    assert lost_builder(replace(failed, **known)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "fault"),
    [(None, "either"), (100, "runner"), (DISK_DECENT_BYTES, "runner"), (10**10, "either")],
)
def test_a_disk_that_was_too_small_is_the_runners_and_one_that_was_filled_may_be(
    before: int | None, fault: str
) -> None:
    full = ending("STEP 1/1: RUN x\nError: no space left on device\n", disk=Disk("/x", 10, 10**11))
    had = Disk("/x", before, 10**11) if before is not None else None

    assert explain(replace(full, disk_before=had)).fault == fault
    assert disk_full(Disk("/x", 10, 100)).fault == "runner"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (RAN.format(1), "build"),
        ("Error: open /x.lock: read-only file system\n", "either"),
        ("Error: no FROM statement found\n", "build"),
    ],
)
def test_what_no_step_did_may_be_the_runners(lines: str, fault: str) -> None:
    assert explain(ending(f"STEP 1/1: RUN x\n{lines}")).fault == fault


def test_last_words_that_begin_very_often_are_read_once() -> None:
    often = "building at STEP " * 10_000
    progress = Progress(tail=['Error: building at STEP "RUN', *[often] * 38, "x: exit status 1."])

    assert explain(Ending(code=1, progress=progress)).cause == "runner"
    progress.tail[-1] = '": exit status 7'
    assert explain(Ending(code=1, progress=progress)).exit_code == 7
