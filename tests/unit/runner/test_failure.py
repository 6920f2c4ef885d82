"""What buildah 1.28 wrote when builds failed, and what people are told."""

import pytest

from pierhead.protocol.result import Failure
from pierhead.runner.domain.failure import EXTRACT_LINES, Ending, explain
from pierhead.runner.domain.progress import Progress


def told(output: str, *, code: int = 1, out_of_memory: bool = False) -> Failure:
    progress = Progress()
    progress.feed(output.encode())
    progress.finish()
    ending = Ending(
        code=code, progress=progress, out_of_memory=out_of_memory, memory_bytes=64 * 2**20
    )
    return explain(ending)


@pytest.mark.parametrize(
    ("cause", "output"),
    [
        (
            "command",
            'STEP 2/2: RUN false\nError: building at STEP "RUN false": '
            "while running runtime: exit status 1\n",
        ),
        (
            "disk-full",
            "STEP 2/2: RUN dd\ndd: error writing '/big': No space left on device\n"
            'Error: building at STEP "RUN dd": while running runtime: exit status 1\n',
        ),
        ("dockerfile", "Error: FROM requires either one argument, or three: FROM <source>\n"),
        ("dockerfile", 'Error: no stage found: Unknown instruction: "NONSENSE"\n'),
        (
            "dockerfile",
            'STEP 3/3: COPY nowhere /x\nError: building at STEP "COPY nowhere /x": checking on '
            'sources under "/c": copier: stat: "/nowhere": no such file or directory\n',
        ),
        (
            "base-image",
            "STEP 1/1: FROM 127.0.0.1:1/a\nError: creating build container: initializing source "
            "docker://127.0.0.1:1/a:latest: pinging container registry 127.0.0.1:1\n",
        ),
    ],
)
def test_a_failure_has_the_name_of_its_cause(cause: str, output: str) -> None:
    assert told(output).cause == cause


def test_a_failed_step_is_told_with_its_code_and_last_lines() -> None:
    noise = "".join(f"line {number}\n" for number in range(100))
    end = 'Error: building at STEP "RUN x": while running runtime: exit status 7\n'

    failure = told(f"STEP 6/9: RUN x\n{noise}{end}")

    assert (failure.step, failure.exit_code) == ("6/9 RUN x", 7)
    assert "exit code 7 at 6/9 RUN x" in failure.message
    assert len(failure.extract) == EXTRACT_LINES
    assert failure.extract[-2] == "line 99"


def test_the_memory_limit_wins_over_what_a_step_says() -> None:
    failure = told("STEP 1/1: RUN x\nKilled\nexit status 137\n", out_of_memory=True)

    assert failure.cause == "out-of-memory"
    assert "64 MiB" in failure.message


def test_a_killed_buildah_is_not_the_users_fault() -> None:
    assert told("STEP 1/1: RUN x\n", code=-9).cause == "runner"


def test_time_that_is_over_wins_over_everything() -> None:
    progress = Progress(step="1/1 RUN x")
    ending = Ending(code=-9, progress=progress, out_of_memory=True, timed_out_seconds=30)

    assert explain(ending).cause == "time"


def test_a_failure_without_any_output_is_still_one() -> None:
    assert told("").message
